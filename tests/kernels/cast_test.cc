#include "kinora/kernels/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace kinora::kernels {
namespace cast_test {

/// The value of a half's bits, by the definition of IEEE 754 binary16.
double half_value(uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(FloatToHalfTest, EveryHalfIsItself) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = half_value(static_cast<uint16_t>(bits));
    const uint16_t got = float_to_f16(static_cast<float>(value));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_value(got))) << bits;
    } else {
      EXPECT_EQ(got, bits);
    }
  }
}

TEST(FloatToHalfTest, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = half_value(static_cast<uint16_t>(bits));
    // Where 65536 would be, if halves went on: from half-way to it on values become infinite.
    const double high = bits == 0x7bff ? 65536.0 : half_value(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // exact
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(float_to_f16(middle), even);
    EXPECT_EQ(float_to_f16(std::nextafter(middle, 0.0F)), bits);
    EXPECT_EQ(float_to_f16(std::nextafter(middle, 1e30F)), bits + 1);
    EXPECT_EQ(float_to_f16(-middle), even | 0x8000U);
  }
}

TEST(FloatToHalfTest, ExtremesAreZeroInfinityAndNan) {
  EXPECT_EQ(float_to_f16(std::numeric_limits<float>::max()), 0x7c00U);
  EXPECT_EQ(float_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00U);
  EXPECT_EQ(float_to_f16(std::numeric_limits<float>::denorm_min()), 0U);
  EXPECT_EQ(float_to_f16(-0.0F), 0x8000U);
  EXPECT_TRUE(std::isnan(half_value(float_to_f16(std::bit_cast<float>(0x7f800001U)))));
}

TEST(CastTest, LoopsEqualTheSingleConversions) {
  std::vector<float> in;
  for (uint64_t bits = 0; bits < 0x100000000ULL; bits += 99'991) {  // a prime: all kinds of values
    in.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  const auto count = static_cast<int64_t>(in.size());
  std::vector<uint16_t> out(in.size() + 1, 0x5555);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    cast(in.data(), count, type, out.data());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], type == DType::kBF16 ? float_to_bf16(in[i]) : float_to_f16(in[i]));
    }
    EXPECT_EQ(out.back(), 0x5555U);
  }
}

}  // namespace cast_test
}  // namespace kinora::kernels
