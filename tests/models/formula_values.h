#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "kinora/nn/module.h"

namespace kinora::models {

/// The numbers in [-1, 1) that a name stands for (tools/reference/formula.py): fp32 on the CPU.
inline at::Tensor formula_values(const std::string& name, at::IntArrayRef shape) {
  uint32_t seed = 2166136261U;
  for (const char letter : name) {
    seed = (seed ^ static_cast<uint8_t>(letter)) * 16777619U;
  }
  at::Tensor result = at::empty(shape, at::kFloat);
  float* const to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    uint32_t x = seed + static_cast<uint32_t>(i) * 0x9E3779B9U;
    x = (x ^ (x >> 16)) * 0x85EBCA6BU;
    x = (x ^ (x >> 13)) * 0xC2B2AE35U;
    x ^= x >> 16;
    to[i] = static_cast<float>(x >> 8) / 8388608.0F - 1.0F;
  }
  return result;
}

/// The value of a parameter of that name, in fp32.
inline at::Tensor formula_weight(const std::string& name, at::IntArrayRef shape) {
  at::Tensor draw = formula_values(name, shape).to(at::kDouble);
  if (shape.size() > 1) {
    const int64_t fan_in = draw.numel() / shape[0];
    draw = draw * std::sqrt(3.0 / static_cast<double>(fan_in));
  } else if (name.ends_with("weight")) {
    draw = draw / 4.0 + 1.0;
  } else {
    draw = draw / 8.0;
  }
  return draw.to(at::kFloat);
}

/// Gives every parameter of `module` its formula's value, and zeros to gather gradients in.
inline void set_formula_weights(nn::Module& module, at::ScalarType type = at::kFloat) {
  for (const auto& [path, parameter] : module.named_parameters()) {
    parameter->value = formula_weight(path, parameter->shape).to(type).set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
}

}  // namespace kinora::models
