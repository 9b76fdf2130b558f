#include "kinora/pipelines/sampling_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora::pipelines {
namespace sampling_ranks_test {

using testing::HasSubstr;

/// {groups, guidance, sequence}.
std::vector<int64_t> shares(const SamplingRanks& wanted, int64_t ranks, int64_t samples,
                            bool guided = true) {
  const SamplingShares result = share_ranks(wanted, ranks, samples, guided);
  EXPECT_EQ(result.groups * result.guidance * result.sequence, ranks);
  EXPECT_EQ(parallel::resolved(result.mesh(), ranks).shard, result.groups);
  return {result.groups, result.guidance, result.sequence};
}

using Shares = std::vector<int64_t>;

TEST(ShareRanksTest, ManySamplesAreDividedAndFewAreShared) {
  EXPECT_EQ(shares({}, 1, 1), (Shares{1, 1, 1}));
  EXPECT_EQ(shares({}, 4, 4), (Shares{4, 1, 1}));
  EXPECT_EQ(shares({}, 4, 1000), (Shares{4, 1, 1}));
  EXPECT_EQ(shares({}, 4, 2), (Shares{2, 2, 1}));
  EXPECT_EQ(shares({}, 2, 1), (Shares{1, 2, 1}));
  EXPECT_EQ(shares({}, 8, 1), (Shares{1, 2, 4}));
  EXPECT_EQ(shares({}, 8, 3), (Shares{1, 2, 4})) << "three groups would not divide eight ranks";
  EXPECT_EQ(shares({}, 3, 1), (Shares{1, 1, 3})) << "two do not divide three";
  EXPECT_EQ(shares({}, 4, 1, /*guided=*/false), (Shares{1, 1, 4}));
}

TEST(ShareRanksTest, WhatIsAskedForStays) {
  EXPECT_EQ(shares({.sequence = 2}, 4, 1), (Shares{1, 2, 2}));
  EXPECT_EQ(shares({.sequence = 2}, 4, 2), (Shares{2, 1, 2}));
  EXPECT_EQ(shares({.guidance = 1}, 4, 1), (Shares{1, 1, 4}));
  EXPECT_EQ(shares({.guidance = 2}, 4, 9), (Shares{2, 2, 1}));
  EXPECT_EQ(shares({.guidance = 2, .sequence = 2}, 8, 2), (Shares{2, 2, 2}));
}

TEST(ShareRanksTest, WhatCannotBeIsNamed) {
  const auto refusal = [](const SamplingRanks& wanted, int64_t ranks, int64_t samples,
                          bool guided) {
    return error_of(ErrorKind::kConfig,
                    [&] { return share_ranks(wanted, ranks, samples, guided); });
  };
  EXPECT_THAT(refusal({.guidance = 2}, 2, 1, false), HasSubstr("its scale is 1"));
  EXPECT_THAT(refusal({.guidance = 2, .sequence = 2}, 6, 1, true),
              HasSubstr("--guidance-ranks 2 x --sequence 2 does not divide 6 ranks"));
  EXPECT_THAT(refusal({.guidance = 1, .sequence = 2}, 4, 1, true),
              HasSubstr("2 groups for 1 sample"));
}

}  // namespace sampling_ranks_test
}  // namespace kinora::pipelines
