#include "kinora/diffusion/spacing.h"

#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/diffusion/records.h"

namespace kinora::diffusion {
namespace spacing_test {

constexpr int64_t kTimesteps = 1000;

std::vector<int64_t> integers(const Record& record) {
  return {record.values.begin(), record.values.end()};
}

/// As `fingerprint` of the fixture's script.
double fingerprint(const std::vector<int64_t>& timesteps) {
  uint32_t value = 0x811C9DC5U;
  for (const int64_t t : timesteps) {
    for (const int64_t byte : {t & 255, t >> 8}) {
      value = (value ^ static_cast<uint32_t>(byte)) * 0x01000193U;
    }
  }
  return value;
}

class SpacingTest : public testing::TestWithParam<Spacing> {};

TEST_P(SpacingTest, EqualsReferenceForEveryNumberOfSteps) {
  const Records records("spacing.txt");
  const std::vector<double>& prints = records.values(std::string(to_string(GetParam())));
  for (int64_t n = 1; n <= kTimesteps; ++n) {
    const std::vector<int64_t> steps = spaced_timesteps(kTimesteps, GetParam(), n);
    ASSERT_EQ(static_cast<int64_t>(steps.size()), n);
    for (int64_t k = 0; k < n; ++k) {
      ASSERT_GE(steps[k], k == 0 ? 0 : steps[k - 1] + 1) << n;
      ASSERT_LT(steps[k], kTimesteps) << n;
    }
    ASSERT_EQ(fingerprint(steps), prints[n - 1]) << n << " steps";
  }
}

INSTANTIATE_TEST_SUITE_P(All, SpacingTest,
                         testing::Values(Spacing::kDit, Spacing::kLeading, Spacing::kTrailing,
                                         Spacing::kLinspace),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(SpacingTest, SectionsEqualReference) {
  const Records records("spacing.txt");
  EXPECT_EQ(spaced_timesteps(300, "10,15,20"), integers(records.at("sections_300_10,15,20")));
  EXPECT_EQ(spaced_timesteps(1000, "7, 11,13"), integers(records.at("sections_1000_7,11,13")));
  EXPECT_EQ(spaced_timesteps(1000, "250"), integers(records.at("dit_1000_250")));
  EXPECT_EQ(spaced_timesteps(1000, "ddim50"), integers(records.at("ddim_1000_50")));
}

TEST(SpacingTest, RoundsHalfToEven) {
  // Stride 2.5: 0, 2.5, 5, 7.5, 10.
  EXPECT_EQ(spaced_timesteps(11, Spacing::kDit, 5), (std::vector<int64_t>{0, 2, 5, 8, 10}));
}

TEST(SpacingTest, NamesRoundTrip) {
  for (const Spacing spacing :
       {Spacing::kDit, Spacing::kLeading, Spacing::kTrailing, Spacing::kLinspace}) {
    EXPECT_EQ(parse_spacing(to_string(spacing)), spacing);
  }
  EXPECT_EQ(parse_spacing("karras"), std::nullopt);
}

TEST(SpacingTest, RefusesImpossibleCounts) {
  EXPECT_THROW(static_cast<void>(spaced_timesteps(1000, Spacing::kDit, 0)), Error);
  EXPECT_THROW(static_cast<void>(spaced_timesteps(1000, Spacing::kTrailing, 1001)), Error);
  for (const char* sections : {"", "0", "-3", "1001", "400,1,1", "ten", "10,", "10;20", "ddim",
                               "ddim7x", "ddim300", "ddim10,10", "99999999999999999999"}) {
    EXPECT_THROW(static_cast<void>(spaced_timesteps(1000, sections)), Error) << sections;
  }
}

}  // namespace spacing_test
}  // namespace kinora::diffusion
