#include "kinora/nn/linear.h"

#include <ATen/ops/linear.h>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

namespace kinora::nn {

Linear::Linear(int64_t in_features, int64_t out_features, Init weight_init,
               const LinearOptions& options)
    : weight{.shape = {out_features, in_features},
             .init = weight_init,
             .fp32_island = options.fp32_island,
             .value = {},
             .grad = {}},
      bias{.shape = {out_features},
           .init = Init::zero(),
           .fp32_island = options.fp32_island,
           .value = {},
           .grad = {}} {
  set_linear(*this);
  add_parameter("weight", weight);
  if (options.has_bias) {
    add_parameter("bias", bias);
  }
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
  return tapped(at::linear(x.to(weight.value.scalar_type()),
                           ops::with_gradient(weight.value, weight.grad),
                           ops::with_gradient(bias.value, bias.grad)));
}

ops::LinearWeights Linear::weights() const {
  ops::LinearWeights weights{weight.value, bias.value, weight.grad, bias.grad, number_};
  if (update_ != nullptr) {
    KINORA_CHECK(!update_->has_magnitude(), kConfig,
                 "[linear] the fast path does not compute magnitudes (DoRA). "
                 "Hint: model.path=plain");
    weights.update = update_->weights();
  }
  return weights;
}

}  // namespace kinora::nn
