#include "kinora/nn/layer_norm.h"

#include <ATen/ops/layer_norm.h>
#include <c10/core/ScalarType.h>

#include "kinora/ops/parameter.h"

namespace kinora::nn {

LayerNorm::LayerNorm(int64_t dim, double epsilon)
    : weight{.shape = {dim}, .init = Init::one(), .value = {}, .grad = {}},
      bias{.shape = {dim}, .init = Init::zero(), .value = {}, .grad = {}},
      epsilon_(epsilon) {
  add_parameter("weight", weight);
  add_parameter("bias", bias);
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  if (x.scalar_type() == weight.value.scalar_type()) {  // ATen's kernels compute in fp32 at least
    return tapped(at::layer_norm(x, weight.shape, ops::with_gradient(weight.value, weight.grad),
                                 ops::with_gradient(bias.value, bias.grad), epsilon_));
  }
  const at::ScalarType wide = c10::promoteTypes(x.scalar_type(), at::kFloat);
  return tapped(at::layer_norm(x.to(wide), weight.shape,
                               ops::with_gradient(weight.value, weight.grad).to(wide),
                               ops::with_gradient(bias.value, bias.grad).to(wide), epsilon_)
                    .to(x.scalar_type()));
}

}  // namespace kinora::nn
