#include "kinora/train/step_times.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/comm/ranks.h"

namespace kinora::train {
namespace step_times_test {

TEST(StepTimesTest, ComputeIsTheRest) {
  EXPECT_DOUBLE_EQ((StepTimes{.step = 1.0, .data = 0.25, .communication = 0.5}).compute(), 0.25);
  // The host waited for samples while the device had work.
  EXPECT_EQ((StepTimes{.step = 1.0, .data = 0.75, .communication = 0.5}).compute(), 0.0);
}

TEST(StepTimesTest, AClockSaysWhatEachStepHasWaited) {
  constexpr std::chrono::milliseconds kPause(30);
  StepClock clock;
  std::this_thread::sleep_for(kPause);
  const StepTimes first = clock.lap(0.5, 2'000'000'000);
  EXPECT_GE(first.step, 0.03);
  EXPECT_DOUBLE_EQ(first.data, 0.5);
  EXPECT_DOUBLE_EQ(first.communication, 2.0);
  std::this_thread::sleep_for(kPause);
  const auto restarted = std::chrono::steady_clock::now();
  clock.restart();
  const StepTimes second = clock.lap(0.75, 2'250'000'000);
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - restarted;
  EXPECT_LE(second.step, since.count()) << "what was before restart() does not count";
  EXPECT_DOUBLE_EQ(second.data, 0.25);
  EXPECT_DOUBLE_EQ(second.communication, 0.25);
  EXPECT_EQ(clock.lap(0.75, std::nullopt).communication, 0.0) << "alone";
}

TEST(StepTimesTest, TheSlowRankIsTheOneThatOthersWaitFor) {
  // All end together. Rank 2 computes longest; rank 1 waits longest, for it.
  const std::vector<StepTimes> ranks = {{.step = 10.0, .data = 1.0, .communication = 1.0},
                                        {.step = 10.0, .data = 0.0, .communication = 4.0},
                                        {.step = 10.0, .data = 0.5, .communication = 0.0},
                                        {.step = 10.0, .data = 0.0, .communication = 2.0}};
  const RankTimes times = compare_ranks(ranks, 7);
  EXPECT_EQ(times.step, 7);
  EXPECT_EQ(times.slow_rank, 2);
  EXPECT_DOUBLE_EQ(times.slowness, 10.0 / 8.5);  // of 9, 6, 10 and 8
  EXPECT_TRUE(times.is_uneven());
  EXPECT_DOUBLE_EQ(times.compute.min, 6.0);
  EXPECT_DOUBLE_EQ(times.compute.median, 8.0);  // of 8, 6, 9.5 and 8
  EXPECT_DOUBLE_EQ(times.compute.max, 9.5);
  EXPECT_DOUBLE_EQ(times.communication.median, 1.5);
  EXPECT_DOUBLE_EQ(times.data.max, 1.0);
  EXPECT_DOUBLE_EQ(times.data.median, 0.25);
}

TEST(StepTimesTest, DataCountAsTheRanksOwn) {
  const std::vector<StepTimes> ranks = {{.step = 10.0, .data = 0.0, .communication = 0.5},
                                        {.step = 10.0, .data = 6.0, .communication = 0.0},
                                        {.step = 10.0, .data = 0.0, .communication = 0.6}};
  const RankTimes times = compare_ranks(ranks, 1);
  EXPECT_EQ(times.slow_rank, 1);
  EXPECT_FALSE(times.is_uneven());
}

TEST(StepTimesTest, MeansOfSeveralStepsComeTogether) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    constexpr int64_t kEvery = 3;
    StepTimesExchange exchange(world, kEvery);
    const auto rank = static_cast<double>(world.rank());
    for (int64_t step = 1; step <= 2 * kEvery; ++step) {
      exchange.add(step, {.step = 8.0 * static_cast<double>(step),
                          .data = 1.0 + rank,
                          .communication = 2.0 * rank});
      if (step % kEvery != 0) {
        EXPECT_FALSE(exchange.take()) << step;
        continue;
      }
      world.barrier();  // after what is under way
      const auto times = exchange.take();
      ASSERT_TRUE(times);
      EXPECT_EQ(times->step, step);
      EXPECT_EQ(times->slow_rank, 0);  // rank 1 waits 2 s
      EXPECT_DOUBLE_EQ(times->data.median, 1.5);
      // Means of 8, 16 and 24, of 32, 40 and 48.
      EXPECT_DOUBLE_EQ(times->compute.max, (step == kEvery ? 16.0 : 40.0) - 1.0);
      EXPECT_FALSE(exchange.take()) << "the same twice";
    }
    world.barrier();
  });
}

TEST(StepTimesTest, OneRankHasNobodyToCompareWith) {
  StepTimesExchange alone({}, 1);
  alone.add(1, {.step = 1.0});
  EXPECT_FALSE(alone.take());
}

}  // namespace step_times_test
}  // namespace kinora::train
