#include "kinora/kernels/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace kinora::kernels {
namespace random_test {

RandomStream test_stream() {
  return {0x0123456789abcdefULL, 42, 7, RandomPurpose::kTest};
}

std::vector<float> draw(int64_t count, uint64_t first, Distribution distribution, float scale) {
  std::vector<float> out(static_cast<size_t>(count));
  random_fill(out.data(), count, test_stream(), first, distribution, scale);
  return out;
}

struct Moments {
  double mean = 0.0;
  double variance = 0.0;
  double kurtosis = 0.0;
};

Moments moments(const std::vector<float>& values) {
  Moments result;
  const auto n = static_cast<double>(values.size());
  for (const float value : values) {
    result.mean += value / n;
  }
  double fourth = 0.0;
  for (const float value : values) {
    const double square = (value - result.mean) * (value - result.mean);
    result.variance += square / n;
    fourth += square * square / n;
  }
  result.kurtosis = fourth / (result.variance * result.variance);
  return result;
}

TEST(PhiloxTest, MatchesPublishedKnownAnswers) {
  // Random123's kat_vectors for philox4x32 with 10 rounds: (counter, key) -> words. Our counter is
  // (block, sample low, step, purpose << 24 | sample high), our key the seed.
  RandomStream zero{0, 0, 0, static_cast<RandomPurpose>(0)};
  EXPECT_THAT(philox(zero, 0).word,
              testing::ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
  RandomStream ones{0xffffffffffffffffULL, 0x00ffffffffffffffULL, 0xffffffffU,
                    RandomPurpose::kTest};
  EXPECT_THAT(philox(ones, 0xffffffffU).word,
              testing::ElementsAre(0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU));
  // Digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  RandomStream pi{0x299f31d0a4093822ULL, 0x0070734485a308d3ULL, 0x13198a2eU,
                  static_cast<RandomPurpose>(0x03)};
  EXPECT_THAT(philox(pi, 0x243f6a88U).word,
              testing::ElementsAre(0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U));
}

TEST(RandomFillTest, SlicesEqualTheWholeAtEveryOffset) {
  const std::vector<float> whole = draw(41, 0, Distribution::kNormal, 1.0F);
  for (int64_t first = 0; first < 41; ++first) {
    for (int64_t count = 0; first + count <= 41; ++count) {
      const std::vector<float> expected(whole.begin() + first, whole.begin() + first + count);
      EXPECT_EQ(draw(count, static_cast<uint64_t>(first), Distribution::kNormal, 1.0F), expected);
    }
  }
}

TEST(RandomFillTest, ReachesTheLastElementOfAStream) {
  const std::vector<float> last = draw(4, kMaxStreamElements - 4, Distribution::kNormal, 1.0F);
  const std::vector<float> first = draw(4, 0, Distribution::kNormal, 1.0F);
  EXPECT_NE(last, first);
}

TEST(RandomFillTest, NormalsHaveTheMomentsOfANormal) {
  // Standard errors for n = 2^20: mean 0.001 std, variance 0.0014, kurtosis 0.005; five of them.
  const Moments got = moments(draw(1 << 20, 0, Distribution::kNormal, 0.5F));
  EXPECT_NEAR(got.mean, 0.0, 0.5 * 0.005);
  EXPECT_NEAR(got.variance, 0.25, 0.25 * 0.007);
  EXPECT_NEAR(got.kurtosis, 3.0, 0.025);
}

TEST(RandomFillTest, NormalsFollowBoxMullerOfTheirWords) {
  const std::vector<float> got = draw(4096, 0, Distribution::kNormal, 1.0F);
  for (size_t block = 0; block < 1024; ++block) {
    const PhiloxBlock words = philox(test_stream(), static_cast<uint32_t>(block));
    for (size_t pair = 0; pair < 2; ++pair) {
      const double u = ((words.word[2 * pair] >> 9) + 0.5) * 0x1p-23;
      const double angle = 2.0 * M_PI * (words.word[2 * pair + 1] >> 8) * 0x1p-24;
      const double radius = std::sqrt(-2.0 * std::log(u));
      EXPECT_NEAR(got[4 * block + 2 * pair], radius * std::cos(angle), 2e-6);
      EXPECT_NEAR(got[4 * block + 2 * pair + 1], radius * std::sin(angle), 2e-6);
    }
  }
}

TEST(RandomFillTest, UniformsLieInsideTheirOpenIntervals) {
  const std::vector<float> unit = draw(1 << 18, 0, Distribution::kUniform, 1.0F);
  const std::vector<float> symmetric = draw(1 << 18, 0, Distribution::kSymmetricUniform, 0.3F);
  for (size_t i = 0; i < unit.size(); ++i) {
    ASSERT_GT(unit[i], 0.0F);
    ASSERT_LT(unit[i], 1.0F);
    ASSERT_LT(std::abs(symmetric[i]), 0.3F);
    ASSERT_NEAR(symmetric[i], 0.3 * (2.0 * unit[i] - 1.0), 3e-8);
  }
  const Moments got = moments(unit);
  EXPECT_NEAR(got.mean, 0.5, 0.003);
  EXPECT_NEAR(got.variance, 1.0 / 12.0, 0.001);
  EXPECT_NEAR(got.kurtosis, 1.8, 0.01);
}

TEST(RandomFillTest, EveryPartOfTheKeyChangesTheNumbers) {
  const RandomStream base = test_stream();
  std::vector<RandomStream> streams(5, base);
  streams[1].seed += uint64_t{1} << 32;
  streams[2].sample += uint64_t{1} << 32;
  streams[3].step += 1;
  streams[4].purpose = RandomPurpose::kNoise;
  std::vector<std::vector<float>> drawn;
  for (const RandomStream& stream : streams) {
    std::vector<float> out(16);
    random_fill(out.data(), 16, stream, 0, Distribution::kUniform, 1.0F);
    for (const std::vector<float>& other : drawn) {
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_NE(out[i], other[i]);
      }
    }
    drawn.push_back(out);
  }
}

}  // namespace random_test
}  // namespace kinora::kernels
