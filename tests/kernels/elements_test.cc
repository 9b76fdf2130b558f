#include "kinora/kernels/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kinora/kernels/cast.h"

namespace kinora::kernels {
namespace elements_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ElementsTest, HalvesComeBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = load_element(&half, 0, DType::kF16);
    if (std::isnan(value)) {
      EXPECT_EQ(half & 0x7c00, 0x7c00);
    } else {
      EXPECT_EQ(float_to_f16(value), half);
    }
  }
}

// Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.
TEST(Fp8Test, HasTheFormatsNumbers) {
  EXPECT_EQ(fp8_to_float(0x7e, DType::kF8E4M3), 448.0F);
  EXPECT_EQ(fp8_to_float(0x08, DType::kF8E4M3), 0x1p-6F);
  EXPECT_EQ(fp8_to_float(0x01, DType::kF8E4M3), 0x1p-9F);
  EXPECT_TRUE(std::isnan(fp8_to_float(0xff, DType::kF8E4M3)));
  EXPECT_EQ(fp8_to_float(0x7b, DType::kF8E5M2), 57344.0F);
  EXPECT_EQ(fp8_to_float(0x04, DType::kF8E5M2), 0x1p-14F);
  EXPECT_EQ(fp8_to_float(0x81, DType::kF8E5M2), -0x1p-16F);
  EXPECT_EQ(fp8_to_float(0x7c, DType::kF8E5M2), kInfinity);
  EXPECT_TRUE(std::isnan(fp8_to_float(0x7d, DType::kF8E5M2)));
}

TEST(Fp8Test, RoundsToTheNearestAndTiesToEven) {
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    const int largest = type == DType::kF8E4M3 ? 0x7e : 0x7b;
    for (int bits = 0; bits < largest; ++bits) {
      const float below = fp8_to_float(static_cast<uint8_t>(bits), type);
      const float above = fp8_to_float(static_cast<uint8_t>(bits + 1), type);
      const float middle = (below + above) / 2.0F;  // exact
      EXPECT_EQ(float_to_fp8(below, type), bits);
      EXPECT_EQ(float_to_fp8(-below, type), bits | 0x80);
      EXPECT_EQ(float_to_fp8(middle, type), bits % 2 == 0 ? bits : bits + 1);
      EXPECT_EQ(float_to_fp8(std::nextafter(middle, 0.0F), type), bits);
      EXPECT_EQ(float_to_fp8(std::nextafter(middle, kInfinity), type), bits + 1);
    }
    EXPECT_EQ(float_to_fp8(kInfinity, type), largest) << "saturates";
    EXPECT_EQ(float_to_fp8(-1e30F, type), largest | 0x80);
    EXPECT_TRUE(std::isnan(fp8_to_float(float_to_fp8(NAN, type), type)));
  }
}

TEST(Fp8Test, OutputsAreScaledTransposedAndMeasured) {
  const float scale = 2.0F;
  float amax = 1.5F;
  uint8_t data[6] = {};
  uint8_t transposed[3 * 16];
  std::ranges::fill(transposed, uint8_t{1});
  const Fp8Output output = {DType::kF8E4M3, data, transposed, &scale, &amax};
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 3; ++column) {
      store_fp8(output, 2, 3, row, column, static_cast<float>(row - column));
    }
  }
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 3; ++column) {
      const auto expected = static_cast<float>(2 * (row - column));
      EXPECT_EQ(fp8_to_float(data[row * 3 + column], DType::kF8E4M3), expected);
      EXPECT_EQ(fp8_to_float(transposed[column * 16 + row], DType::kF8E4M3), expected);
    }
  }
  for (int i = 0; i < 3 * 16; ++i) {
    EXPECT_TRUE(i % 16 < 2 || transposed[i] == 0) << i;
  }
  EXPECT_EQ(amax, 2.0F);
  store_fp8(output, 2, 3, 0, 0, NAN);
  EXPECT_TRUE(std::isnan(amax));
}

}  // namespace elements_test
}  // namespace kinora::kernels
