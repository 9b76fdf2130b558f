#include "kinora/core/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>
#include <vector>

namespace kinora {
namespace philox_test {

/// The generator with all its inputs in hand: counter words 0..3 and key words 0, 1.
std::array<uint32_t, 4> raw(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  RandomStream stream;
  stream.seed = key[0] | (static_cast<uint64_t>(key[1]) << 32);
  stream.sample = counter[1] | (static_cast<uint64_t>(counter[3] & 0x00ffffffU) << 32);
  stream.step = counter[2];
  stream.purpose = static_cast<RandomPurpose>(counter[3] >> 24);
  const PhiloxBlock block = philox(stream, counter[0]);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

// The known answers of the Random123 distribution (tests/kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxTest, MatchesKnownAnswersOfRandom123) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(raw({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(raw({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(raw({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, EveryPartOfTheStreamGivesOtherNumbers) {
  const RandomStream base{.seed = 7, .sample = 3, .step = 2, .purpose = RandomPurpose::kNoise};
  std::vector<RandomStream> streams(10, base);
  streams[1].seed = 8;
  streams[2].seed = 7 | (1ULL << 32);
  streams[3].sample = 4;
  streams[4].sample = 3 | (1ULL << 32);
  streams[5].sample = 3 | (1ULL << 55);
  streams[6].step = 3;
  streams[7].purpose = RandomPurpose::kTimestep;
  streams[8].purpose = RandomPurpose::kInit;
  streams[9].step = 1U << 31;
  std::set<std::array<uint32_t, 4>> seen;
  for (const RandomStream& stream : streams) {
    for (uint32_t block = 0; block < 100; ++block) {
      const PhiloxBlock words = philox(stream, block);
      seen.insert({words.word[0], words.word[1], words.word[2], words.word[3]});
    }
  }
  EXPECT_EQ(seen.size(), 1000U);
}

TEST(PhiloxTest, SampleAbove56BitsDoesNotTouchThePurpose) {
  RandomStream a{.seed = 1, .sample = 5, .step = 0, .purpose = RandomPurpose::kNoise};
  RandomStream b = a;
  b.sample |= 0xffULL << 56;
  EXPECT_EQ(philox(a, 0).word[0], philox(b, 0).word[0]);
}

TEST(PhiloxTest, UniformIsOpenAndSymmetric) {
  EXPECT_EQ(philox_uniform(0), 0x1p-24F);
  EXPECT_EQ(philox_uniform(0xffffffffU), 1.0F - 0x1p-24F);
  EXPECT_EQ(philox_uniform(0x7fffffffU) + philox_uniform(0x80000000U), 1.0F);
}

TEST(PhiloxTest, UniformFillsTheInterval) {
  constexpr int kNumbers = 200000;
  std::array<int, 20> bins{};
  double sum = 0.0;
  for (int i = 0; i < kNumbers; ++i) {
    const float u = random_uniform({.seed = 11}, static_cast<uint64_t>(i));
    sum += u;
    bins.at(static_cast<size_t>(u * 20.0F)) += 1;
  }
  EXPECT_NEAR(sum / kNumbers, 0.5, 5.0 * std::sqrt(1.0 / 12.0 / kNumbers));
  double chi_square = 0.0;
  for (const int count : bins) {
    const double expected = kNumbers / 20.0;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 43.8);  // 19 degrees of freedom, 0.1 % level
}

TEST(PhiloxTest, IndexStaysBelowItsBoundAndReachesAll) {
  std::array<int, 7> counts{};
  for (uint64_t i = 0; i < 70000; ++i) {
    counts.at(random_index({.seed = 5}, i, 7)) += 1;
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 10000, 5.0 * std::sqrt(10000.0 * 6.0 / 7.0));
  }
  EXPECT_EQ(random_index({.seed = 5}, 0, 1), 0U);
}

// All 2^23 values that philox_uniform can take.
TEST(PhiloxTest, LogIsWithinTwoUlpOfTheDoubleLibrary) {
  double worst = 0.0;
  for (uint32_t n = 0; n < (1U << 23); ++n) {
    const float u = philox_uniform(n << 9);
    const double truth = std::log(static_cast<double>(u));
    const double ulp = std::nextafter(std::abs(static_cast<float>(truth)), 100.0F) -
                       std::abs(static_cast<float>(truth));
    worst = std::max(worst, std::abs(philox_detail::log_unit(u) - truth) / ulp);
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(philox_detail::log_unit(1.0F), 0.0F);
}

// Every 16th of the 2^24 values that the transform can take.
TEST(PhiloxTest, SineAndCosineAreCloseToTheDoubleLibrary) {
  double worst = 0.0;
  double worst_circle = 0.0;
  for (uint32_t n = 0; n < (1U << 24); n += 16) {
    const float turns = static_cast<float>(n + (n >> 4) % 16) * 0x1p-24F;
    float sine;
    float cosine;
    philox_detail::sin_cos_turns(turns, &sine, &cosine);
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(turns);
    worst = std::max({worst, std::abs(sine - std::sin(angle)), std::abs(cosine - std::cos(angle))});
    worst_circle = std::max(worst_circle, std::abs(1.0 - std::hypot(sine, cosine)));
  }
  EXPECT_LT(worst, 1.2e-7);  // 2 units in the last place of 1
  EXPECT_LT(worst_circle, 1.2e-7);
}

TEST(PhiloxTest, SineAndCosineAreExactAtQuarters) {
  const std::array<std::array<float, 3>, 4> cases = {
      {{0.0F, 0.0F, 1.0F}, {0.25F, 1.0F, 0.0F}, {0.5F, 0.0F, -1.0F}, {0.75F, -1.0F, 0.0F}}};
  for (const auto& [turns, expected_sine, expected_cosine] : cases) {
    float sine;
    float cosine;
    philox_detail::sin_cos_turns(turns, &sine, &cosine);
    EXPECT_EQ(sine, expected_sine) << turns;
    EXPECT_EQ(cosine, expected_cosine) << turns;
  }
}

std::vector<double> normals(const RandomStream& stream, uint32_t num_blocks) {
  std::vector<double> values;
  for (uint32_t block = 0; block < num_blocks; ++block) {
    float four[4];
    philox_normal(philox(stream, block), four);
    values.insert(values.end(), four, four + 4);
  }
  return values;
}

TEST(PhiloxTest, NormalsFollowBoxAndMuller) {
  for (uint32_t i = 0; i < 1000; ++i) {
    const PhiloxBlock block = philox({.seed = 3}, i);
    float four[4];
    philox_normal(block, four);
    for (int k = 0; k < 4; k += 2) {
      const double u = (static_cast<double>(block.word[k] >> 9) + 0.5) / 8388608.0;
      const double angle =
          2.0 * std::numbers::pi * static_cast<double>(block.word[k + 1] >> 8) / 16777216.0;
      const double radius = std::sqrt(-2.0 * std::log(u));
      EXPECT_NEAR(four[k], radius * std::cos(angle), 1e-6);
      EXPECT_NEAR(four[k + 1], radius * std::sin(angle), 1e-6);
    }
  }
}

TEST(PhiloxTest, NormalsHaveTheMomentsOfTheNormalDistribution) {
  const std::vector<double> x = normals({.seed = 1, .purpose = RandomPurpose::kNoise}, 250000);
  const auto n = static_cast<double>(x.size());
  std::array<double, 4> moment{};
  double neighbours = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    double power = 1.0;
    for (double& sum : moment) {
      power *= x[i];
      sum += power / n;
    }
    neighbours += i > 0 ? x[i] * x[i - 1] / n : 0.0;
  }
  // Five standard errors; the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
  EXPECT_NEAR(moment[0], 0.0, 5.0 * std::sqrt(1.0 / n));
  EXPECT_NEAR(moment[1], 1.0, 5.0 * std::sqrt(2.0 / n));
  EXPECT_NEAR(moment[2], 0.0, 5.0 * std::sqrt(15.0 / n));
  EXPECT_NEAR(moment[3], 3.0, 5.0 * std::sqrt(96.0 / n));
  EXPECT_NEAR(neighbours, 0.0, 5.0 * std::sqrt(1.0 / n));
}

TEST(PhiloxTest, NormalsPassKolmogorovAndSmirnov) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::vector<double> x = normals({.seed = seed}, 50000);
    std::sort(x.begin(), x.end());
    const auto n = static_cast<double>(x.size());
    double distance = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double cdf = 0.5 * std::erfc(-x[i] / std::numbers::sqrt2);
      distance = std::max({distance, std::abs(cdf - static_cast<double>(i) / n),
                           std::abs(cdf - static_cast<double>(i + 1) / n)});
    }
    EXPECT_LT(distance * std::sqrt(n), 1.95) << "seed " << seed;  // 0.1 % level
  }
}

TEST(PhiloxTest, NormalsOfDifferentPurposesAreUncorrelated) {
  const std::vector<double> a = normals({.seed = 1, .purpose = RandomPurpose::kNoise}, 25000);
  const std::vector<double> b =
      normals({.seed = 1, .purpose = RandomPurpose::kInitialNoise}, 25000);
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  const auto n = static_cast<double>(a.size());
  EXPECT_NEAR(sum / n, 0.0, 5.0 / std::sqrt(n));
}

TEST(PhiloxTest, NamesHaveTheirFoldedFnvHash) {
  // FNV-1a of "" and "a" from the authors' page, folded to 56 bits.
  EXPECT_EQ(random_name(""), (0xcbf29ce484222325ULL ^ 0xcb) & 0x00ffffffffffffffULL);
  EXPECT_EQ(random_name("a"), (0xaf63dc4c8601ec8cULL ^ 0xaf) & 0x00ffffffffffffffULL);
  EXPECT_NE(random_name("blocks.0.attn.qkv.weight"), random_name("blocks.1.attn.qkv.weight"));
}

}  // namespace philox_test
}  // namespace kinora
