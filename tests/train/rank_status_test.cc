#include "kinora/train/rank_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kinora::train {
namespace rank_status_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

RankStatus status_of(int64_t rank, int64_t step, int64_t num_calls) {
  RankStatus status;
  status.rank = rank;
  status.host = "node" + std::to_string(rank);
  status.step = step;
  status.phase = Phase::kUpdate;
  status.limit = 10.0;
  status.num_calls = num_calls;
  return status;
}

TEST(RankStatusTest, SurvivesTheWayThroughAText) {
  RankStatus status = status_of(3, 12, 700);
  status.finished = 11;
  status.phase = Phase::kData;
  status.in_phase = 1.25;
  status.unmoved = 0.5;
  status.collective = "all_reduce 57 (rank 1 of 4), 1.2 MiB, under way";
  status.data_file = "a name\twith a tab and\na line.tar";
  const std::optional<RankStatus> read = decode_status(encode(status));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->host, "node3");
  EXPECT_EQ(read->step, 12);
  EXPECT_EQ(read->finished, 11);
  EXPECT_EQ(read->phase, Phase::kData);
  EXPECT_EQ(read->in_phase, 1.25);
  EXPECT_EQ(read->unmoved, 0.5);
  EXPECT_EQ(read->limit, 10.0);
  EXPECT_EQ(read->num_calls, 700);
  EXPECT_EQ(read->collective, status.collective);
  EXPECT_EQ(read->data_file, "a name?with a tab and?a line.tar");
}

TEST(RankStatusTest, RefusesOtherTexts) {
  const std::string good = encode(status_of(0, 1, 1));
  ASSERT_TRUE(decode_status(good).has_value());
  for (const std::string& wrong :
       {std::string(), std::string("x"), good + "\tmore", good.substr(0, good.rfind('\t')),
        "x" + good, "0\th\t1\t1\t" + std::to_string(kNumPhases) + "\t0\t0\t0\t0\t\t"}) {
    EXPECT_FALSE(decode_status(wrong).has_value()) << wrong;
  }
}

TEST(RankStatusTest, WhoMovedOrMayTakeLongKeepsOthersFromCallingItAStall) {
  RankStatus status = status_of(0, 1, 1);
  status.unmoved = 9.9;
  EXPECT_TRUE(may_still_move(status));
  status.unmoved = 10.0;
  EXPECT_FALSE(may_still_move(status));
  status.limit = 60.0;
  EXPECT_TRUE(may_still_move(status));
  status.silent = 6.0;
  EXPECT_FALSE(may_still_move(status));
}

TEST(RankStatusTest, FindsWhoIsBehind) {
  std::vector<RankStatus> all = {status_of(0, 5, 50), status_of(1, 5, 50), status_of(2, 5, 50)};
  EXPECT_THAT(ranks_behind(all), IsEmpty());
  all[1].phase = Phase::kData;
  EXPECT_THAT(ranks_behind(all), ElementsAre(1));
  all[2].num_calls = 49;
  EXPECT_THAT(ranks_behind(all), ElementsAre(2));
  all[0].step = 4;
  EXPECT_THAT(ranks_behind(all), ElementsAre(0));
  all[1].silent = 3.0;
  EXPECT_THAT(ranks_behind(all), ElementsAre(1));
}

TEST(RankStatusTest, TheTableHasALineARank) {
  std::vector<RankStatus> all = {status_of(0, 5, 50), status_of(1, 0, 0)};
  all[0].collective = "barrier 1 (rank 0 of 2), 0 B";
  all[1].phase = Phase::kData;
  all[1].data_file = "b.tar";
  all[1].silent = 7.0;
  EXPECT_EQ(status_table(all, {1}),
            "rank  host   step  finished  phase   for     last collective               data file\n"
            "0     node0  5     -         update  0.00 s  barrier 1 (rank 0 of 2), 0 B  -\n"
            "1     node1  -     -         data    0.00 s  -                             b.tar      "
            "<- behind, silent for 7.0 s");
  EXPECT_THAT(status_table(all, {}), Not(HasSubstr("behind")));
}

}  // namespace rank_status_test
}  // namespace kinora::train
