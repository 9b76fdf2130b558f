#include "kinora/nn/linear.h"

#include <ATen/ops/linear.h>

#include "kinora/ops/parameter.h"

namespace kinora::nn {

Linear::Linear(int64_t in_features, int64_t out_features, Init weight_init,
               const LinearOptions& options) {
  set_weight_layer(*this);
  weight.shape = {out_features, in_features};
  weight.init = weight_init;
  weight.fp32_island = options.fp32_island;
  bias.shape = {out_features};
  bias.fp32_island = options.fp32_island;
  add_parameter("weight", weight);
  if (options.has_bias) {
    add_parameter("bias", bias);
  }
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  const at::Tensor own = x.to(weight.value.scalar_type());
  const at::Tensor own_weight = ops::with_gradient(weight.value, weight.grad);
  const at::Tensor own_bias = ops::with_gradient(bias.value, bias.grad);
  if (update() == nullptr) {
    return tapped(at::linear(own, own_weight, own_bias));
  }
  return tapped(
      update()->forward(own, own_weight, own_bias,
                        [](const at::Tensor& input, const at::Tensor& by, const at::Tensor& plus) {
                          return at::linear(input, by, plus);
                        }));
}

ops::LinearWeights Linear::weights() const {
  ops::LinearWeights weights{weight.value, bias.value, weight.grad, bias.grad, number_};
  if (update() != nullptr) {
    weights.updates = {update()->weights()};
  }
  return weights;
}

}  // namespace kinora::nn
