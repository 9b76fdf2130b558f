// Schedules against the best of all that there are, tried one by one.
#include "kinora/parallel/sequence_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/error_of.h"

namespace kinora::parallel {
namespace sequence_schedule_test {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Seconds that each rank computes.
std::vector<double> busy(const SequenceSchedule& schedule, const std::vector<size_t>& kinds,
                         const std::vector<SecondsByDegree>& seconds, int64_t ranks) {
  std::vector<double> sums(static_cast<size_t>(ranks), 0.0);
  for (const PlacedPass& placed : schedule.passes) {
    size_t degree = 0;
    while (int64_t{1} << degree < placed.ranks) {
      ++degree;
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      sums[static_cast<size_t>(rank)] +=
          placed.is_of(rank) ? seconds[kinds[placed.pass]][degree] : 0.0;
    }
  }
  return sums;
}

/// The least seconds of the rank with the most to do: every pass at every place.
double least(const std::vector<size_t>& kinds, const std::vector<SecondsByDegree>& seconds,
             std::vector<double>& done, size_t pass) {
  if (pass == kinds.size()) {
    return *std::ranges::max_element(done);
  }
  double best = kNever;
  for (size_t degree = 0; degree < seconds[kinds[pass]].size(); ++degree) {
    const size_t width = size_t{1} << degree;
    for (size_t first = 0; first < done.size(); first += width) {
      const std::vector<double> before = done;
      for (size_t rank = first; rank < first + width; ++rank) {
        done[rank] += seconds[kinds[pass]][degree];
      }
      best = std::min(best, least(kinds, seconds, done, pass + 1));
      done = before;
    }
  }
  return best;
}

TEST(SequenceScheduleTest, IsNearTheBestOfAll) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  double worst = 1.0;
  double sum = 0.0;
  constexpr int kCases = 40;
  for (int i = 0; i < kCases; ++i) {
    std::vector<SecondsByDegree> seconds;
    for (int kind = 0; kind < 3; ++kind) {
      const double whole = 0.5 + 8.0 * uniform(random);
      const double lost = 0.4 * uniform(random);  // by each doubling
      const bool fits = uniform(random) < 0.8;
      seconds.push_back(
          {fits ? whole : kNever, whole / 2 * (1 + lost), whole / 4 * (1 + 2 * lost)});
    }
    std::vector<size_t> kinds;
    for (int pass = 0; pass < 5; ++pass) {
      kinds.push_back(random() % 3);
    }
    const SequenceSchedule schedule = schedule_sequences(kinds, seconds, 4);
    const std::vector<double> of_ranks = busy(schedule, kinds, seconds, 4);
    EXPECT_NEAR(schedule.seconds, *std::ranges::max_element(of_ranks), 1e-12);
    EXPECT_NEAR(schedule.busy, std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0), 1e-9);
    std::vector<double> done(4, 0.0);
    const double ratio = schedule.seconds / least(kinds, seconds, done, 0);
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  EXPECT_LT(sum / kCases, 1.03);
  EXPECT_LT(worst, 4.0 / 3.0);  // of Graham's longest first (1969) on one number of ranks
}

TEST(SequenceScheduleTest, EachPassOnceAndTheWidestFirst) {
  const std::vector<SecondsByDegree> seconds = {{1.0, 0.7, 0.5}, {9.0, 4.6, 2.4}};
  const std::vector<size_t> kinds = {0, 1, 0, 0, 1, 0, 0};
  const SequenceSchedule schedule = schedule_sequences(kinds, seconds, 8);
  std::vector<size_t> seen;
  for (size_t i = 0; i < schedule.passes.size(); ++i) {
    const PlacedPass& placed = schedule.passes[i];
    seen.push_back(placed.pass);
    EXPECT_EQ(placed.first_rank % placed.ranks, 0);
    EXPECT_LE(placed.first_rank + placed.ranks, 8);
    EXPECT_TRUE(i == 0 || placed.ranks <= schedule.passes[i - 1].ranks);
  }
  EXPECT_THAT(seen, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(SequenceScheduleTest, LargeSamplesAreDividedAndSmallOnesStayWhole) {
  // A clip that takes as long as four pictures, on four ranks: alone it would be waited for.
  const std::vector<SecondsByDegree> seconds = {{1.0, 0.9, 0.8}, {4.0, 2.0, 1.0}};
  const SequenceSchedule schedule = schedule_sequences({0, 0, 1, 0, 0}, seconds, 4);
  EXPECT_DOUBLE_EQ(schedule.seconds, 2.0);
  for (const PlacedPass& placed : schedule.passes) {
    EXPECT_EQ(placed.ranks, placed.pass == 2 ? 4 : 1);
  }
  // With nothing beside it that could use the ranks it does not need.
  EXPECT_EQ(schedule_sequences({0}, {{1.0, 1.0}}, 2).passes.front().ranks, 1);
}

TEST(SequenceScheduleTest, WhatNoRanksCanComputeIsRefused) {
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { (void)schedule_sequences({0}, {{kNever}}, 2); }),
              testing::HasSubstr("up to 1 can compute"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] {
                         (void)schedule_sequences({0}, {{1., 1.}}, 3);
                       }),
              testing::HasSubstr("must be a multiple of the 2"));
}

}  // namespace sequence_schedule_test
}  // namespace kinora::parallel
