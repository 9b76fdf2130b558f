#include "kinora/nn/conv.h"

#include <ATen/TensorOperators.h>

#include <cassert>
#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/convolution.h"
#include "kinora/ops/parameter.h"

namespace kinora::nn {
namespace {

ConvShape checked(ConvShape shape) {
  const size_t dims = shape.kernel.size();
  KINORA_CHECK(dims >= 1 && dims <= 3, kConfig, "[conv] kernel must have 1 to 3 sizes, got ", dims);
  if (shape.stride.empty()) {
    shape.stride.assign(dims, 1);
  }
  if (shape.padding.empty()) {
    shape.padding.assign(dims, Padding{0, 0});
  }
  KINORA_CHECK(shape.stride.size() == dims && shape.padding.size() == dims, kConfig,
               "[conv] stride and padding must have ", dims, " sizes, got ", shape.stride.size(),
               " and ", shape.padding.size());
  KINORA_CHECK(shape.groups > 0 && shape.in_channels % shape.groups == 0 &&
                   shape.out_channels % shape.groups == 0,
               kConfig, "[conv] groups must divide the channels ", shape.in_channels, " and ",
               shape.out_channels, ", got ", shape.groups);
  return shape;
}

std::vector<int64_t> weight_shape(const ConvShape& shape) {
  std::vector<int64_t> sizes = {shape.out_channels, shape.in_channels / shape.groups};
  sizes.insert(sizes.end(), shape.kernel.begin(), shape.kernel.end());
  return sizes;
}

}  // namespace

ConvShape ConvShape::same(int64_t in_channels, int64_t out_channels, int64_t kernel,
                          size_t spatial_dims) {
  return {.in_channels = in_channels,
          .out_channels = out_channels,
          .kernel = std::vector<int64_t>(spatial_dims, kernel),
          .padding = std::vector<Padding>(spatial_dims, Padding{kernel / 2, kernel / 2})};
}

Conv::Conv(ConvShape shape) : shape_(checked(std::move(shape))) {
  if (shape_.groups == 1) {  // updates have no groups
    set_weight_layer(*this);
  }
  weight.shape = weight_shape(shape_);
  const int64_t fan_in = weight.numel() / shape_.out_channels;
  const Init init = {Init::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(fan_in))};
  weight.init = init;
  weight.channels_last = shape_.channels_last;
  add_parameter("weight", weight);
  if (shape_.has_bias) {
    bias.shape = {shape_.out_channels};
    bias.init = init;
    add_parameter("bias", bias);
  }
}

at::Tensor Conv::forward(const at::Tensor& x) const {
  return forward(x, shape_.padding);
}

at::Tensor Conv::forward_without_bias(const at::Tensor& x) const {
  return convolved(x, shape_.padding, {});
}

at::Tensor Conv::added_bias() const {
  return shape_.has_bias ? ops::with_gradient(bias.value, bias.grad) : at::Tensor();
}

at::Tensor Conv::forward(const at::Tensor& x, const std::vector<Padding>& padding) const {
  return tapped(convolved(x, padding, added_bias()));
}

at::Tensor Conv::forward_plus(const at::Tensor& x, const std::vector<Padding>& padding,
                              const at::Tensor& plus) const {
  return is_tapped() || update() != nullptr ? forward(x, padding) + plus
                                            : convolved(x, padding, added_bias(), plus);
}

at::Tensor Conv::convolved(const at::Tensor& x, const std::vector<Padding>& padding,
                           const at::Tensor& bias, const at::Tensor& plus) const {
  const at::Tensor own = x.to(weight.value.scalar_type());
  const at::Tensor own_weight = ops::with_gradient(weight.value, weight.grad);
  const auto product = [&](const at::Tensor& input, const at::Tensor& by, const at::Tensor& added) {
    return ops::convolve(
        input, by, added,
        {.stride = shape_.stride, .padding = padding, .groups = shape_.groups, .plus = plus});
  };
  return update() == nullptr ? product(own, own_weight, bias)
                             : update()->forward(own, own_weight, bias, product);
}

at::Tensor Conv::forward_doubled(const at::Tensor& x, Padding rows,
                                 const at::Tensor& phases) const {
  assert(update() == nullptr);
  return tapped(ops::convolve_doubled(x.to(weight.value.scalar_type()),
                                      phases.defined() ? phases : doubled_phases(), added_bias(),
                                      rows));
}

bool Conv::doubles_clips() const {
  return !is_tapped() && update() == nullptr && shape_.groups == 1 &&
         shape_.kernel == std::vector<int64_t>{3, 3, 3} &&
         shape_.stride == std::vector<int64_t>{1, 1, 1};
}

at::Tensor Conv::forward_doubled_clip(const at::Tensor& x, int64_t times, int64_t left_out) const {
  assert(doubles_clips());
  return ops::convolve_doubled_clip(x.to(weight.value.scalar_type()), weight.value,
                                    shape_.has_bias ? bias.value : at::Tensor(), times, left_out);
}

at::Tensor Conv::doubled_phases() const {
  return ops::doubled_phases(ops::with_gradient(weight.value, weight.grad));
}

}  // namespace kinora::nn
