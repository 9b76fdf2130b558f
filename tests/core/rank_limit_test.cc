#include "kinora/core/rank_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kinora/core/error.h"
#include "tests/error_of.h"

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

TEST(RankLimitTest, CoresBearManyThreadsEachButNotAnyNumber) {
  EXPECT_NO_THROW(check_num_threads(0, 1));
  EXPECT_NO_THROW(check_num_threads(128, 2));
  for (const int64_t absurd : {int64_t{-1}, int64_t{129}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(
        error_of(ErrorKind::kConfig,
                 [&] {
                   check_num_threads(absurd, 2);
                   return 0;
                 }),
        HasSubstr("must lie in 0 to 128, 64 for each of 2 cores, got " + std::to_string(absurd)));
  }
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
