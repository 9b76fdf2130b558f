#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include "tests/diffusion/records.h"

/// Small helpers of this folder's tests.
namespace kinora::diffusion {

/// A fixture's record as a double tensor.
inline at::Tensor tensor_of(const Record& record) {
  return at::tensor(record.values, at::kDouble).view(record.shape);
}

/// The largest absolute difference.
inline double max_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// The norm of the difference over the norm of `expected`.
inline double relative_difference(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  const at::Tensor reference = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - reference).norm() / reference.norm()).item<double>();
}

/// Sample numbers first, first + 1, ...
inline at::Tensor sample_numbers(int64_t count, int64_t first = 0) {
  return at::arange(first, first + count, at::kLong);
}

}  // namespace kinora::diffusion
