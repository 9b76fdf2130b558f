#include "kinora/kernels/weight_codes.h"
#include "kinora/core/rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kinora/kernels/fp8.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace weight_codes_test {

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kFp8, WeightFormat::kNf4};

struct Codes {
  Codes(WeightFormat format, const std::vector<float>& in, int64_t width)
      : call{.format = format,
             .count = static_cast<int64_t>(in.size()),
             .group = format == WeightFormat::kNf4 ? kNf4Group : width} {
    codes.resize(static_cast<size_t>(code_bytes(format, call.count)));
    scales.resize(static_cast<size_t>(ceil_div(call.count, call.group)));
    call.codes = codes.data();
    call.scales = scales.data();
    quantise_weight(call, in.data());
  }

  [[nodiscard]] std::vector<float> values(DType type = DType::kF32) const {
    std::vector<uint8_t> out(static_cast<size_t>(call.count) * size_of(type));
    dequantise_weight(call, type, out.data());
    return decode(out, type);
  }

  WeightCodes call;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

TEST(WeightCodesTest, Int8IsAtMostHalfAStepOff) {
  const std::vector<float> in = random_values(int64_t{5} * 37, 1, 0.1F);
  const Codes codes(WeightFormat::kInt8, in, 37);
  const std::vector<float> out = codes.values();
  for (size_t i = 0; i < in.size(); ++i) {
    const float step = codes.scales[i / 37];
    EXPECT_LE(std::abs(out[i] - in[i]), step / 2 * 1.0001F) << i;
  }
  for (size_t row = 0; row < 5; ++row) {
    const auto begin = in.begin() + static_cast<int64_t>(row) * 37;
    const float largest = std::abs(*std::max_element(
        begin, begin + 37, [](float a, float b) { return std::abs(a) < std::abs(b); }));
    EXPECT_EQ(codes.scales[row], largest / 127.0F);
  }
}

TEST(WeightCodesTest, Fp8IsTheNearestE4m3OfEachValue) {
  std::vector<float> in = random_values(int64_t{3} * 1001, 2, 0.1F);
  in[5] *= 1e-4F;  // below the smallest normal number of its row
  in[6] = -0.0F;
  const Codes codes(WeightFormat::kFp8, in, 1001);
  const std::vector<float> out = codes.values();
  for (size_t i = 0; i < in.size(); ++i) {
    const float scale = codes.scales[i / 1001];
    ASSERT_EQ(codes.codes[i], float_to_fp8(in[i] / scale, DType::kF8E4M3)) << i;
    ASSERT_LE(std::abs(out[i] - in[i]),
              std::max(std::abs(in[i]) / 16.0F, scale * 0x1p-10F) * 1.0001F)
        << i;
  }
}

TEST(WeightCodesTest, EveryE4m3NumberComesBack) {
  std::vector<float> in;
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) != 0x7f) {
      in.push_back(fp8_to_float(static_cast<uint8_t>(bits), DType::kF8E4M3));
    }
  }
  const auto width = static_cast<int64_t>(in.size());
  EXPECT_EQ(Codes(WeightFormat::kFp8, in, width).values(), in);
}

TEST(WeightCodesTest, Nf4IsTheNearestOfItsNumbers) {
  const std::vector<float> in = random_values(64 + 64 + 13, 3);  // the last group is not full
  const Codes codes(WeightFormat::kNf4, in, 1);
  const std::vector<float> out = codes.values();
  ASSERT_EQ(codes.scales.size(), 3U);
  for (size_t i = 0; i < in.size(); ++i) {
    const float scale = codes.scales[i / 64];
    float nearest = std::numeric_limits<float>::max();
    for (const float number : kNf4Numbers) {
      nearest = std::min(nearest, std::abs(in[i] - number * scale));
    }
    EXPECT_LE(std::abs(out[i] - in[i]), nearest * 1.0001F) << i;
  }
  EXPECT_EQ(codes.codes[0] >> 4, std::distance(kNf4Numbers, std::find(kNf4Numbers, kNf4Numbers + 16,
                                                                      out[0] / codes.scales[0])));
}

TEST(WeightCodesTest, ZerosStayZerosAndWhatIsNotFiniteShows) {
  for (const WeightFormat format : kFormats) {
    std::vector<float> in(3 * 64, 0.0F);
    in[64] = std::numeric_limits<float>::infinity();
    in[128] = 1e-45F;  // that no scale can bring into range
    const Codes codes(format, in, 64);
    const std::vector<float> out = codes.values();
    EXPECT_EQ(out[0], 0.0F);
    EXPECT_EQ(codes.scales[0], 0.0F);
    EXPECT_TRUE(std::isnan(codes.scales[1]));
    EXPECT_TRUE(std::isnan(out[64]));
    EXPECT_EQ(out[128], 0.0F);
  }
}

TEST(WeightCodesTest, HalfPrecisionIsRoundedOnce) {
  const std::vector<float> in = random_values(int64_t{4} * 50, 4, 0.02F);
  for (const WeightFormat format : kFormats) {
    const Codes codes(format, in, 50);
    for (const DType type : {DType::kBF16, DType::kF16}) {
      EXPECT_EQ(codes.values(type), decode(encode(codes.values(), type), type));
    }
  }
}

}  // namespace weight_codes_test
}  // namespace kinora::kernels
