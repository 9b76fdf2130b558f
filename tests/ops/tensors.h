#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/ops/random.h"

namespace kinora::ops {

/// Normal numbers that depend on `number` alone; no gradients yet.
inline at::Tensor normal(std::vector<int64_t> shape, int64_t number,
                         at::ScalarType type = at::kFloat) {
  shape.insert(shape.begin(), 1);
  return random_normal(shape, at::arange(number, number + 1, at::kLong), 1, 0, RandomPurpose::kTest,
                       at::kCPU)
      .squeeze(0)
      .to(type);
}

/// |got - expected| / |expected|, in float64.
inline double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor exact = expected.detach().to(at::kDouble);
  return ((got.detach().to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

/// The derivative of the scalar f at x along `direction` by central differences, in float64.
inline double finite_difference(const std::function<at::Tensor(const at::Tensor&)>& f,
                                const at::Tensor& x, const at::Tensor& direction) {
  constexpr double kStep = 1e-5;
  const double above = f(x.detach() + direction * kStep).item<double>();
  const double below = f(x.detach() - direction * kStep).item<double>();
  return (above - below) / (2 * kStep);
}

}  // namespace kinora::ops
