#include "kinora/models/layers/time_waves.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sin.h>

#include <cmath>

namespace kinora::models {
namespace {

constexpr double kLongestWave = 10000.0;

}  // namespace

at::Tensor time_waves(const at::Tensor& t) {
  constexpr int64_t kHalf = kTimeWaves / 2;
  const at::Tensor frequencies = at::exp(at::arange(kHalf, t.options().requires_grad(false)) *
                                         (-std::log(kLongestWave) / kHalf));
  const at::Tensor angles = t.unsqueeze(1) * frequencies;  // [B, 128]
  return at::cat({at::cos(angles), at::sin(angles)}, 1);
}

}  // namespace kinora::models
