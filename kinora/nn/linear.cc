#include "kinora/nn/linear.h"

#include <ATen/ops/linear.h>

#include <algorithm>
#include <utility>

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
  ops::LinearWeights weights{.weight = weight.value,
                             .bias = bias.value,
                             .weight_grad = weight.grad,
                             .bias_grad = bias.grad,
                             .number = number_};
  if (update() != nullptr) {
    weights.updates = {update()->weights()};
  }
  return weights;
}

void Linear::set_parts(Dim dim, std::vector<int64_t> sizes) {
  parted_ = dim;
  part_sizes_ = std::move(sizes);
}

int64_t Linear::num_parts() const {
  return std::max<int64_t>(static_cast<int64_t>(part_sizes_.size()), 1);
}

std::vector<ops::LinearWeights> Linear::parts() const {
  const ops::LinearWeights whole = weights();
  if (part_sizes_.empty()) {
    return {whole};
  }
  std::vector<ops::LinearWeights> parts;
  int64_t first = 0;
  for (size_t i = 0; i < part_sizes_.size(); ++i) {
    const int64_t size = part_sizes_[i];
    ops::LinearWeights& part = parts.emplace_back(
        parted_ == Dim::kOutputs
            ? ops::some_outputs(whole, first, size)
            : ops::some_inputs(whole, first, size, /*has_bias=*/i + 1 == part_sizes_.size()));
    if (whole.number >= 0) {
      part.number = whole.number + static_cast<int64_t>(i);
      part.first_part = whole.number;
    }
    first += size;
  }
  return parts;
}

}  // namespace kinora::nn
