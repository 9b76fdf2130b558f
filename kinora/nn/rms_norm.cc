#include "kinora/nn/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <c10/core/ScalarType.h>

#include "kinora/ops/parameter.h"

namespace kinora::nn {

RmsNorm::RmsNorm(int64_t dim, double epsilon)
    : weight{.shape = {dim}, .init = Init::one(), .value = {}, .grad = {}}, epsilon_(epsilon) {
  add_parameter("weight", weight);
}

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  const at::Tensor wide = x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
  const at::Tensor scale = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon_);
  return tapped((wide * scale * ops::with_gradient(weight.value, weight.grad)).to(x.scalar_type()));
}

}  // namespace kinora::nn
