#include "kinora/models/transformers/seams.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rsqrt.h>

namespace kinora::models {
namespace {

constexpr double kNormEpsilon = 1e-6;

}  // namespace

at::Tensor gated_sum(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& branch) {
  return at::addcmul(x, gate, branch);
}

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  const at::Tensor norm = at::layer_norm(x, {x.size(-1)}, {}, {}, kNormEpsilon);
  return at::addcmul(shift, norm, scale + 1.0);
}

at::Tensor modulated_rms_norm(const at::Tensor& x, const at::Tensor& shift,
                              const at::Tensor& scale) {
  const at::Tensor norm = x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kNormEpsilon);
  return at::addcmul(shift, norm, scale + 1.0);
}

}  // namespace kinora::models
