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

at::Tensor time_waves(const at::Tensor& t, int64_t dims) {
  const int64_t half = dims / 2;
  const at::Tensor frequencies = at::exp(at::arange(half, t.options().requires_grad(false)) *
                                         (-std::log(kLongestWave) / static_cast<double>(half)));
  const at::Tensor angles = t.unsqueeze(1) * frequencies;  // [B, dims / 2]
  return at::cat({at::cos(angles), at::sin(angles)}, 1);
}

}  // namespace kinora::models
