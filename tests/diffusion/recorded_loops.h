#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdint>
#include <vector>

/// What the loops of tools/make_sampler_fixtures.py begin with, and the denoiser that they ask.
namespace kinora::diffusion {

inline constexpr int64_t kLoopElements = 24;

inline at::Tensor wave(double amplitude, double (*function)(double), double stride, double offset) {
  std::vector<double> values;
  for (int64_t i = 0; i < kLoopElements; ++i) {
    values.push_back(amplitude * function(stride * static_cast<double>(i) + offset));
  }
  return at::tensor(values, at::kFloat).view({2, 3, 2, 2});
}
inline at::Tensor start() {
  return wave(1.4, std::sin, 1.7, 0.3);
}
inline at::Tensor noise(int64_t evaluation) {
  return wave(1.4, std::cos, 2.3, 1.1 * static_cast<double>(evaluation));
}
inline at::Tensor denoised(const at::Tensor& x, double t, bool learned_variance) {
  const at::Tensor out = 0.4 * (1.5 * x + t / 300.0).cos() + 0.25 * x;
  return learned_variance ? at::cat({out, 0.5 + 0.4 * (x + t / 200.0).sin()}, 1) : out;
}

}  // namespace kinora::diffusion
