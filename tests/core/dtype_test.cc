#include "kinora/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"

namespace kinora {
namespace dtype_test {

TEST(DTypeTest, NamesAndSizesAreThoseOfSafetensors) {
  EXPECT_EQ(size_of(DType::kBool), 1U);
  EXPECT_EQ(size_of(DType::kBF16), 2U);
  EXPECT_EQ(size_of(DType::kF32), 4U);
  EXPECT_EQ(size_of(DType::kI64), 8U);
  for (const char* name : {"BOOL", "U8", "I8", "I16", "I32", "I64", "F8_E4M3", "F8_E5M2", "F16",
                           "BF16", "F32", "F64"}) {
    ASSERT_TRUE(parse_dtype(name).has_value()) << name;
    EXPECT_EQ(to_string(*parse_dtype(name)), name);
  }
  EXPECT_FALSE(parse_dtype("f32").has_value());
  EXPECT_FALSE(parse_dtype("F8_E8M0").has_value());
  EXPECT_THROW((void)size_of(static_cast<DType>(200)), Error);
}

/// Round to nearest even by the standard library in double: 8 significant bits, at least 2^-133
/// apart.
float nearest_bf16(float x) {
  if (!std::isfinite(x) || x == 0.0F) {
    return x;
  }
  const int exponent = std::max(std::ilogb(x), -126);
  const double rounded =
      std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), 7 - exponent)), exponent - 7);
  return std::abs(rounded) >= 0x1p128 ? std::copysign(INFINITY, x) : static_cast<float>(rounded);
}

TEST(DTypeTest, Bf16SurvivesTheTripThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (!std::isnan(value)) {
      EXPECT_EQ(float_to_bf16(value), bits);
    }
  }
}

TEST(DTypeTest, Bf16RoundsToNearestEven) {
  // The middle between every two neighbours, and the floats right beside it.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (const uint32_t low : {1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const auto value = std::bit_cast<float>((bits << 16) | low);
      if (!std::isnan(value)) {
        ASSERT_EQ(bf16_to_float(float_to_bf16(value)), nearest_bf16(value)) << value;
      }
    }
  }
  for (uint32_t i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(philox({.seed = 1}, i).word[0]);
    if (!std::isnan(value)) {
      ASSERT_EQ(bf16_to_float(float_to_bf16(value)), nearest_bf16(value)) << value;
    }
  }
}

TEST(DTypeTest, Bf16KeepsNan) {
  // A payload in the low bits only must not become infinity.
  for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0x7fffffffU}) {
    const float back = bf16_to_float(float_to_bf16(std::bit_cast<float>(bits)));
    EXPECT_TRUE(std::isnan(back));
    EXPECT_EQ(std::signbit(back), (bits >> 31) == 1);
  }
}

}  // namespace dtype_test
}  // namespace kinora
