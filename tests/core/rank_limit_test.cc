#include "kinora/core/rank_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kinora/core/error.h"

namespace kinora {
namespace rank_limit_test {

using testing::HasSubstr;

/// What is said against so many ranks; empty: nothing.
std::string refusal(int64_t ranks, const RankRoom& room) {
  try {
    check_num_ranks(ranks, room);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(RankLimitTest, CoresBearAFewRanksEach) {
  EXPECT_EQ(refusal(1, {.cores = 1}), "");
  EXPECT_EQ(refusal(8, {.cores = 2}), "");
  const std::string said = refusal(9, {.cores = 2});
  EXPECT_THAT(said, HasSubstr("--ranks must be at most 8 here, 4 for each of 2 cores, got 9"));
  EXPECT_THAT(said, HasSubstr("Hint: --oversubscribe"));
  EXPECT_EQ(refusal(100000, {.cores = 2, .oversubscribe = true}), "");
}

TEST(RankLimitTest, EveryRankNeedsAGpuWhereThereAreSome) {
  EXPECT_EQ(refusal(4, {.gpus = 4, .cores = 1}), "");
  for (const bool oversubscribe : {false, true}) {
    EXPECT_THAT(refusal(5, {.gpus = 4, .cores = 64, .oversubscribe = oversubscribe}),
                HasSubstr("--ranks 5 needs as many GPUs, but there are 4"));
  }
}

TEST(RankLimitTest, ThereIsACore) {
  EXPECT_GE(num_cores(), 1);
}

}  // namespace rank_limit_test
}  // namespace kinora
