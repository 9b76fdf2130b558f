#include "kinora/nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <utility>

#include "kinora/comm/differentiable.h"
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
  at::Tensor own = x.to(weight.value.scalar_type());
  if (is_divided() && (!is_sum() || cut()->reads_whole)) {
    own = comm::shared(group(), own);
    const int64_t inputs = weight.shape[1];
    own = is_sum() ? own.narrow(-1, group().rank() * inputs, inputs) : own;
  }
  const at::Tensor own_weight = ops::with_gradient(weight.value, weight.grad);
  const at::Tensor own_bias = ops::with_gradient(bias.value, bias.grad);
  const auto product = [](const at::Tensor& input, const at::Tensor& by, const at::Tensor& plus) {
    return at::linear(input, by, plus);
  };
  const at::Tensor added = is_sum() ? at::Tensor() : own_bias;
  at::Tensor y = update() == nullptr ? product(own, own_weight, added)
                                     : update()->forward(own, own_weight, added, product);
  if (is_sum()) {
    y = comm::sum(group(), y);
    y = own_bias.defined() ? y + own_bias : y;
  }
  return tapped(y);
}

ops::LinearWeights Linear::weights() const {
  const bool adds_bias = !is_sum() || group().rank() == 0;
  ops::LinearWeights weights{.weight = weight.value,
                             .bias = adds_bias ? bias.value : at::Tensor(),
                             .weight_grad = weight.grad,
                             .bias_grad = bias.grad,
                             .number = number_};
  weights.at_host = weight.at_host;
  if (update() != nullptr) {
    weights.updates = {update()->weights()};
    const bool has_room = weight.value.defined() && weight.value.stride(0) > weight.shape[1];
    weights.free_columns = has_room ? weight.room : 0;
    weights.free_rows = weights.free_columns;
  }
  return weights;
}

void Linear::set_parts(Cut::Dim dim, std::vector<int64_t> sizes) {
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
    const int64_t size = part_sizes_[i] / group().size();
    ops::LinearWeights& part = parts.emplace_back(
        parted_ == Cut::Dim::kOutputs
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
