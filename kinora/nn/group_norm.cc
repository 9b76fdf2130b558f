#include "kinora/nn/group_norm.h"

#include <c10/core/ScalarType.h>

#include "kinora/core/error.h"
#include "kinora/ops/group_norm.h"
#include "kinora/ops/parameter.h"

namespace kinora::nn {

GroupNorm::GroupNorm(int64_t groups, int64_t channels, double epsilon)
    : weight{.shape = {channels}, .init = Init::one(), .value = {}, .grad = {}},
      bias{.shape = {channels}, .init = Init::zero(), .value = {}, .grad = {}},
      groups_(groups),
      epsilon_(epsilon) {
  KINORA_CHECK(groups > 0 && channels % groups == 0, kConfig,
               "[group_norm] groups must divide the channels ", channels, ", got ", groups);
  add_parameter("weight", weight);
  add_parameter("bias", bias);
}

at::Tensor GroupNorm::forward(const at::Tensor& x) const {
  check(x);
  return tapped(ops::group_norm(x, ops::with_gradient(weight.value, weight.grad),
                                ops::with_gradient(bias.value, bias.grad),
                                {.groups = groups_, .epsilon = epsilon_, .silu = false}));
}

at::Tensor GroupNorm::forward_silu(const at::Tensor& x, const at::Tensor& channel_bias,
                                   const at::Tensor& offset) const {
  check(x);
  return tapped(ops::group_norm(
      x, ops::with_gradient(weight.value, weight.grad), ops::with_gradient(bias.value, bias.grad),
      {.groups = groups_, .epsilon = epsilon_, .silu = true}, channel_bias, offset));
}

void GroupNorm::check(const at::Tensor& x) const {
  KINORA_CHECK(x.dim() >= 2 && x.size(1) == weight.shape[0], kShape,
               "[group_norm] x must have shape [B, ", weight.shape[0], ", ...], got ", x.sizes());
}

at::Tensor GroupNorm::sums(const at::Tensor& x) const {
  check(x);
  return ops::channel_moments(x).view({2, x.size(0), groups_, -1}).sum(-1);
}

at::Tensor GroupNorm::apply(const at::Tensor& x, const at::Tensor& sums,
                            int64_t group_elements) const {
  const auto [scale, shift] = affine(x, sums, group_elements);
  return ops::channel_affine(x, scale, shift, /*silu=*/false);
}

at::Tensor GroupNorm::apply_silu(const at::Tensor& x, const at::Tensor& sums,
                                 int64_t group_elements, bool overwrite) const {
  const auto [scale, shift] = affine(x, sums, group_elements);
  return ops::channel_affine(x, scale, shift, /*silu=*/true, overwrite);
}

at::Tensor GroupNorm::apply_silu_with_edges(const at::Tensor& x, const at::Tensor& sums,
                                            int64_t group_elements,
                                            const std::vector<std::array<int64_t, 2>>& counts,
                                            const at::Tensor& before) const {
  const auto [scale, shift] = affine(x, sums, group_elements);
  return ops::channel_affine_with_edges(x, scale, shift, /*silu=*/true, counts, before);
}

ops::GroupAffine GroupNorm::affine(const at::Tensor& x, const at::Tensor& sums,
                                   int64_t group_elements) const {
  return ops::group_affine(sums, ops::with_gradient(weight.value, weight.grad),
                           ops::with_gradient(bias.value, bias.grad), group_elements, epsilon_,
                           c10::promoteTypes(x.scalar_type(), at::kFloat));
}

}  // namespace kinora::nn
