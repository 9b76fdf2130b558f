#include "kinora/models/text_encoders/text_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/formula_values.h"

namespace kinora::models {
namespace text_linear_test {

/// Rows of very different sizes, one of zeros.
at::Tensor weight() {
  at::Tensor values = formula_values("weight", {40, 64});
  for (int64_t row = 0; row < 39; ++row) {
    values[row].mul_(std::pow(1.7, static_cast<double>(row) - 20.0));
  }
  values[39].zero_();
  return values;
}

TEST(EightBitWeightTest, ValuesAreOffByNoMoreThanStated) {
  const at::Tensor exact = weight();
  const at::Tensor most = exact.abs().amax(1, true);
  for (const EightBit format : {EightBit::kInt8, EightBit::kFp8}) {
    const EightBitWeight bits = to_eight_bits(exact, format);
    EXPECT_EQ(bits.values.element_size(), 1);
    EXPECT_TRUE(bits.scale.equal(bits.scale.to(at::kBFloat16).to(at::kFloat)));
    const at::Tensor near = bits.values.to(at::kFloat) * bits.scale;
    const at::Tensor bound =
        format == EightBit::kInt8 ? most / 250.0 : exact.abs() / 16.0 + most / 400000.0;
    EXPECT_TRUE(((near - exact).abs() <= bound).all().item<bool>());
  }
}

TEST(TextLinearTest, AnEightBitWeightIsWidenedToTheTypeAsked) {
  const at::Tensor x = formula_values("x", {3, 64});
  const at::Tensor bias = formula_values("bias", {40});
  for (const EightBit format : {EightBit::kInt8, EightBit::kFp8}) {
    const EightBitWeight bits = to_eight_bits(weight(), format);
    const at::Tensor wide = bits.values.to(at::kFloat) * bits.scale;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      TextLinear linear(64, 40, nn::Init::zero(), true);
      linear.bias.value = bias.to(type);
      linear.set_eight_bits(bits, type);
      EXPECT_EQ(linear.type(), type);
      EXPECT_TRUE(linear.weight.frozen);
      EXPECT_TRUE(
          linear.forward(x).equal(at::linear(x.to(type), wide.to(type), linear.bias.value)));
    }
  }
}

}  // namespace text_linear_test
}  // namespace kinora::models
