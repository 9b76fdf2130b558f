#include "kinora/models/text_encoders/text_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>

#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

constexpr double kMostInt8 = 127.0;
constexpr double kMostFp8 = 448.0;
/// bf16's steps: a scale that was rounded down becomes no smaller than it was.
constexpr double kScaleStep = 1.0 + 1.0 / 128.0;

}  // namespace

EightBitWeight to_eight_bits(const at::Tensor& weight, EightBit format) {
  const double most = format == EightBit::kInt8 ? kMostInt8 : kMostFp8;
  const at::Tensor wide = weight.to(at::kFloat);
  const at::Tensor exact = wide.abs().amax(1, /*keepdim=*/true) / most;  // [out, 1]
  // As bf16 has it, so that widening rounds once; never below, so that nothing leaves the range.
  const at::Tensor near = exact.to(at::kBFloat16).to(at::kFloat);
  const at::Tensor above = (near * kScaleStep).to(at::kBFloat16).to(at::kFloat);
  const at::Tensor scale = at::where(near < exact, above, near);
  const at::Tensor scaled = wide / at::where(scale == 0.0, 1.0, scale);
  return {format == EightBit::kInt8 ? scaled.round().to(at::kChar) : scaled.to(at::kFloat8_e4m3fn),
          scale};
}

TextLinear::TextLinear(int64_t in_features, int64_t out_features, nn::Init init, bool has_bias) {
  set_weight_layer(*this);
  weight.shape = {out_features, in_features};
  weight.init = init;
  add_parameter("weight", weight);
  if (has_bias) {
    bias.shape = {out_features};
    bias.init = nn::Init::zero();
    add_parameter("bias", bias);
  }
}

at::ScalarType TextLinear::type() const {
  return scale_.defined() ? wide_type_ : weight.value.scalar_type();
}

void TextLinear::set_eight_bits(const EightBitWeight& eight_bits, at::ScalarType type) {
  weight.frozen = true;
  weight.value = eight_bits.values;
  scale_ = eight_bits.scale;
  wide_type_ = type;
}

at::Tensor TextLinear::wide_weight() const {
  return scale_.defined() ? weight.value.to(wide_type_).mul_(scale_)
                          : ops::with_gradient(weight.value, weight.grad);
}

at::Tensor TextLinear::forward(const at::Tensor& x) const {
  const at::Tensor own = x.to(type());
  const at::Tensor own_bias = ops::with_gradient(bias.value, bias.grad);
  if (update() == nullptr) {
    return tapped(at::linear(own, wide_weight(), own_bias));
  }
  return tapped(
      update()->forward(own, wide_weight(), own_bias,
                        [](const at::Tensor& input, const at::Tensor& by, const at::Tensor& plus) {
                          return at::linear(input, by, plus);
                        }));
}

}  // namespace kinora::models
