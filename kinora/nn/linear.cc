#include "kinora/nn/linear.h"

#include <ATen/ops/linear.h>

#include "kinora/ops/fused.h"
#include "kinora/ops/parameter.h"

namespace kinora::nn {

Linear::Linear(int64_t in_features, int64_t out_features, Init weight_init, bool fp32_island)
    : weight{.shape = {out_features, in_features},
             .init = weight_init,
             .fp32_island = fp32_island,
             .value = {},
             .grad = {}},
      bias{.shape = {out_features},
           .init = Init::zero(),
           .fp32_island = fp32_island,
           .value = {},
           .grad = {}} {
  set_linear(*this);
  add_parameter("weight", weight);
  add_parameter("bias", bias);
}

void Linear::adapt(const LowRankOptions& options) {
  weight.frozen = true;
  bias.frozen = true;
  update_ = std::make_unique<LowRankUpdate>(weight.shape[1], weight.shape[0], options,
                                            weight.fp32_island);
  update_->set_layer(weight.layer);
  add_child("", *update_);
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  if (update_ != nullptr) {
    return tapped(update_->forward(x.to(weight.value.scalar_type()),
                                   ops::with_gradient(weight.value, weight.grad),
                                   ops::with_gradient(bias.value, bias.grad)));
  }
  if (kernels() != nullptr && !weight.fp32_island) {
    return ops::fused::linear(*kernels(), x.to(weight.value.scalar_type()), weights());
  }
  return tapped(at::linear(x.to(weight.value.scalar_type()),
                           ops::with_gradient(weight.value, weight.grad),
                           ops::with_gradient(bias.value, bias.grad)));
}

}  // namespace kinora::nn
