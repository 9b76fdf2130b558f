#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <utility>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/ops/random.h"

namespace kinora::nn {

/// Standard normals that depend on shape and number alone: fp32.
inline at::Tensor normal(std::vector<int64_t> shape, int64_t number) {
  shape.insert(shape.begin(), 1);
  return ops::random_normal(shape, at::arange(number, number + 1, at::kLong), 1, 0,
                            RandomPurpose::kTest, at::kCPU)
      .squeeze(0);
}

/// Random values for all parameters, which then require gradients: of ordinary autograd, since no
/// Parameter::grad is given.
inline void give_random_values(Module& module, at::ScalarType type, double scale = 0.5) {
  int64_t number = 1000;
  for (const auto& [path, parameter] : module.named_parameters()) {
    parameter->value =
        (normal(parameter->shape, number++) * scale).to(type).set_requires_grad(true);
  }
}

}  // namespace kinora::nn
