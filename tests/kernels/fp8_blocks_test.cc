#include "kinora/kernels/fp8_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kinora/kernels/fp8.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace fp8_blocks_test {

TEST(Fp8BlocksTest, AddsTheTermsOfEachSum) {
  // Two sums of two terms; 130 elements, so that the second block is not full.
  constexpr int64_t kCount = 130;
  constexpr int64_t kPitch = 256;
  std::vector<uint8_t> data(4 * kPitch);
  const std::vector<float> factors = {1.0F, 2.0F, 0.5F, 0.25F, 3.0F, NAN, 8.0F, 1.0F};
  const std::vector<float> numbers = {2.0F, -16.0F, 448.0F, 0.015625F};  // of each term
  for (size_t term = 0; term < 4; ++term) {
    std::fill_n(data.begin() + static_cast<int64_t>(term) * kPitch, kPitch,
                float_to_fp8(numbers[term], DType::kF8E4M3));
  }
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(to_string(type));
    std::vector<uint8_t> out(2 * kCount * size_of(type));
    BlockSums call;
    call.sums = 2;
    call.terms = 2;
    call.count = kCount;
    call.pitch = kPitch;
    call.data = data.data();
    call.factors = factors.data();
    call.scale = 0.5F;
    call.type = type;
    call.out = out.data();
    block_sums(call);
    const std::vector<float> values = decode(out, type);
    EXPECT_EQ(values[0], -3.0F);    // (2 * 1 - 16 * 0.5) / 2
    EXPECT_EQ(values[127], -3.0F);  // of the same block
    EXPECT_EQ(values[128], 0.0F);   // (2 * 2 - 16 * 0.25) / 2
    EXPECT_EQ(values[129], 0.0F);
    // (448 * 3 + 2^-6 * 8) / 2, which the 16-bit types round
    const float rounded = type == DType::kF32 ? 672.0625F : 672.0F;
    EXPECT_EQ(values[130], rounded);
    EXPECT_TRUE(std::isnan(values[2 * kCount - 1]));
  }
}

TEST(Fp8BlocksTest, BringsBackWhatWasQuantised) {
  const std::vector<float> in = random_values(int64_t{16} * 128, 5, 3.0F);
  std::vector<uint8_t> data(in.size());
  std::vector<float> factors(16), out(in.size());
  BlockQuantise quantised;
  quantised.rows = 16;
  quantised.width = 128;
  quantised.type = DType::kF32;
  quantised.in = in.data();
  quantised.data = data.data();
  quantised.factors = factors.data();
  block_quantise(quantised);
  BlockSums call;
  call.sums = 1;
  call.terms = 1;
  call.count = int64_t{16} * 128;
  call.pitch = call.count;
  call.data = data.data();
  call.factors = factors.data();
  call.out = out.data();
  block_sums(call);
  for (size_t i = 0; i < in.size(); ++i) {
    // Half a unit of three mantissa bits, or of the smallest number: 2^-9 / 448 of the largest.
    const float largest = factors[i / 128] * kLargestE4M3;
    EXPECT_LE(std::abs(out[i] - in[i]),
              std::max(std::abs(in[i]) / 16.0F, largest * 0x1p-10F / kLargestE4M3) * 1.00001F);
  }
}

}  // namespace fp8_blocks_test
}  // namespace kinora::kernels
