#include "kinora/device/stopwatch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kinora::device {
namespace stopwatch_test {

TEST(StopwatchTest, LapsAddUpAndWhatIsBetweenDoesNot) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLap(20);
  Stopwatch stopwatch(at::kCPU);
  EXPECT_EQ(stopwatch.total().item<int64_t>(), 0);
  std::chrono::nanoseconds longest(0);  // that the laps can have taken
  for (int i = 0; i < 2; ++i) {
    const auto start = Clock::now();
    {
      const Lap lap(stopwatch);
      std::this_thread::sleep_for(kLap);
    }
    longest += Clock::now() - start;
    std::this_thread::sleep_for(kLap);
  }
  const std::chrono::nanoseconds total(stopwatch.total().item<int64_t>());
  EXPECT_GE(total, 2 * kLap);
  EXPECT_LE(total, longest);
}

}  // namespace stopwatch_test
}  // namespace kinora::device
