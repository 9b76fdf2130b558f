#include "kinora/kernels/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace fp8_test {

TEST(Fp8Test, QuantisesScaledValuesAndSaturates) {
  const std::vector<float> in = {1.0F, -3.0F, 1000.0F, -INFINITY, 0.0F, 1.0625F};
  std::vector<uint8_t> data(6), transposed(3 * 16);
  const float scale = 2.0F;
  float amax = 0.0F;
  quantise({2,
            3,
            DType::kF32,
            in.data(),
            {DType::kF8E4M3, data.data(), transposed.data(), &scale, &amax}});
  // 2.125 lies between 2 and 2.25; its tie goes to the even one, 2.
  EXPECT_EQ(decode(data, DType::kF8E4M3),
            (std::vector<float>{2.0F, -6.0F, 448.0F, -448.0F, 0.0F, 2.0F}));
  const std::vector<float> columns = decode(transposed, DType::kF8E4M3);
  for (size_t column = 0; column < 3; ++column) {
    for (size_t row = 0; row < 2; ++row) {
      EXPECT_EQ(columns[16 * column + row], decode(data, DType::kF8E4M3)[3 * row + column]);
    }
  }
  EXPECT_EQ(amax, INFINITY);
}

TEST(Fp8Test, LargestMagnitudeKeepsNan) {
  const std::vector<float> in = {1.0F, -3.0F, NAN, INFINITY};
  float amax = 2.0F;
  quantise({1, 2, DType::kF32, in.data(), {.amax = &amax}});
  EXPECT_EQ(amax, 3.0F);
  quantise({1, 4, DType::kF32, in.data(), {.amax = &amax}});
  EXPECT_TRUE(std::isnan(amax));
}

TEST(Fp8Test, TransposesBytes) {
  const std::vector<uint8_t> in = {1, 2, 3, 4, 5, 6};
  std::vector<uint8_t> out(3 * 16, 9);
  transpose_bytes(in.data(), 2, 3, out.data());
  std::vector<uint8_t> want(3 * 16);
  for (size_t i = 0; i < in.size(); ++i) {
    want[16 * (i % 3) + i / 3] = in[i];
  }
  EXPECT_EQ(out, want);
}

/// Three tensors with a history of three steps.
struct Scales {
  std::vector<float> amax, history, largest, scale, inverse_scale;
  ScaleUpdate call;

  Scales()
      : amax(3),
        history(9),
        largest{kLargestE4M3, kLargestE5M2, kLargestE4M3},
        scale(3, 1.0F),
        inverse_scale(3) {
    call = {3, amax.data(),  history.data(),      3, largest.data(),
            0, scale.data(), inverse_scale.data()};
  }

  void step(const std::vector<float>& next) {
    std::copy(next.begin(), next.end(), amax.begin());
    update_scales(call);
  }
};

TEST(Fp8Test, DelayedScalingTakesTheLargestOfTheWindow) {
  Scales scales;
  scales.step({7.0F, 3.5F, 0.0F});
  EXPECT_EQ(scales.scale, (std::vector<float>{64.0F, 16384.0F, 1.0F}));
  EXPECT_EQ(scales.inverse_scale, (std::vector<float>{1.0F / 64, 1.0F / 16384, 1.0F}));
  EXPECT_EQ(scales.amax, std::vector<float>(3));
  scales.step({3.5F, 7.0F, 448.0F});
  scales.step({1.75F, 1.0F, 1.0F});
  EXPECT_EQ(scales.scale, (std::vector<float>{64.0F, 8192.0F, 1.0F}));
  EXPECT_EQ(scales.history,
            (std::vector<float>{1.75F, 3.5F, 7.0F, 1.0F, 7.0F, 3.5F, 1.0F, 448.0F, 0.0F}));
  scales.step({1.75F, 1.0F, 1.0F});  // the 7 has left the window
  EXPECT_EQ(scales.scale, (std::vector<float>{128.0F, 8192.0F, 1.0F}));
}

TEST(Fp8Test, AMagnitudeThatIsNotFiniteLeavesTheScale) {
  Scales scales;
  scales.step({7.0F, 7.0F, 7.0F});
  scales.step({INFINITY, NAN, 0.0F});
  EXPECT_EQ(scales.scale, (std::vector<float>{64.0F, 8192.0F, 64.0F}));
  EXPECT_EQ(scales.history,
            (std::vector<float>{0.0F, 7.0F, 0.0F, 0.0F, 7.0F, 0.0F, 0.0F, 7.0F, 0.0F}));
}

TEST(Fp8Test, MarginsCurrentScalingAndTinyMagnitudes) {
  Scales scales;
  scales.call.margin = 1;
  scales.call.window = 0;
  scales.step({7.0F, 7.0F, 0x1p-140F});
  EXPECT_EQ(scales.scale, (std::vector<float>{32.0F, 4096.0F, 3.402823466e38F}));
  scales.step({14.0F, 14.0F, 14.0F});
  EXPECT_EQ(scales.scale, (std::vector<float>{16.0F, 2048.0F, 16.0F}));
}

TEST(Fp8Test, BlocksHaveTheLayoutOfCublaslt) {
  constexpr int64_t kRows = 144;  // the last blocks are not full
  constexpr int64_t kWidth = 272;
  std::vector<float> in(kRows * kWidth, 0.25F);
  in[1 * kWidth + 130] = -7.0F;   // row 1, block 1 of its row; block (0, 1)
  in[143 * kWidth + 271] = 3.5F;  // row 143, block 2 of its row; block (1, 2)
  in[128 * kWidth] = 14.0F;       // row 128, block 0; block (1, 0)
  std::vector<uint8_t> data(in.size()), transposed(in.size());
  const float rest = 0.25F / 448.0F;
  for (const bool is_square : {false, true}) {
    std::vector<float> factors(static_cast<size_t>(block_factors(kRows, kWidth, is_square)));
    std::vector<float> transposed_factors(
        static_cast<size_t>(block_factors(kWidth, kRows, is_square)));
    EXPECT_EQ(factors.size(), is_square ? 2U * 4U : 144U * 3U);
    EXPECT_EQ(transposed_factors.size(), is_square ? 3U * 4U : 272U * 2U);
    BlockQuantise call;
    call.rows = kRows;
    call.width = kWidth;
    call.type = DType::kF32;
    call.in = in.data();
    call.is_square = is_square;
    call.data = data.data();
    call.factors = factors.data();
    call.transposed = transposed.data();
    call.transposed_factors = transposed_factors.data();
    block_quantise(call);
    if (is_square) {
      EXPECT_EQ(factors,
                (std::vector<float>{rest, 1.0F / 64, rest, 0, 1.0F / 32, rest, 1.0F / 128, 0}));
      EXPECT_EQ(transposed_factors, (std::vector<float>{rest, 1.0F / 32, 0, 0, 1.0F / 64, rest, 0,
                                                        0, rest, 1.0F / 128, 0, 0}));
    } else {
      EXPECT_EQ(factors[1 * 144 + 1], 1.0F / 64);
      EXPECT_EQ(factors[2 * 144 + 143], 1.0F / 128);
      EXPECT_EQ(factors[0 * 144 + 128], 1.0F / 32);
      EXPECT_EQ(factors[0 * 144 + 1], rest);
      EXPECT_EQ(transposed_factors[0 * 272 + 130], 1.0F / 64);
      EXPECT_EQ(transposed_factors[1 * 272 + 271], 1.0F / 128);
      EXPECT_EQ(transposed_factors[1 * 272 + 0], 1.0F / 32);
      EXPECT_EQ(transposed_factors[0 * 272 + 0], rest);
    }
    EXPECT_EQ(fp8_to_float(data[1 * kWidth + 130], DType::kF8E4M3), -448.0F);
    EXPECT_EQ(fp8_to_float(data[1 * kWidth + 131], DType::kF8E4M3), 16.0F);
    EXPECT_EQ(fp8_to_float(transposed[130 * kRows + 1], DType::kF8E4M3), -448.0F);
  }
}

TEST(Fp8Test, BlocksOfZerosAndOfNan) {
  std::vector<float> in(16 * 16);
  std::vector<uint8_t> data(in.size());
  std::vector<float> factors(16);
  in[16] = NAN;
  in[32] = INFINITY;
  BlockQuantise call;
  call.rows = 16;
  call.width = 16;
  call.type = DType::kF32;
  call.in = in.data();
  call.data = data.data();
  call.factors = factors.data();
  block_quantise(call);
  EXPECT_EQ(factors[0], 1.0F);
  EXPECT_EQ(data[0], 0);
  EXPECT_TRUE(std::isnan(factors[1]));
  EXPECT_TRUE(std::isnan(factors[2]));
  EXPECT_TRUE(std::isnan(fp8_to_float(data[32], DType::kF8E4M3)));
}

}  // namespace fp8_test
}  // namespace kinora::kernels
