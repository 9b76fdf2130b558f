#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/device/graph.h"
#include "kinora/device/stopwatch.h"

namespace kinora::device {
namespace gpu_stopwatch_test {

class GpuStopwatchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "there is no GPU";
    }
  }

  [[nodiscard]] int64_t total(const Stopwatch& stopwatch) const {
    const at::Tensor nanoseconds = stopwatch.total();
    synchronize(kGpu);
    return nanoseconds.item<int64_t>();
  }

  const at::Device kGpu{at::kCUDA, 0};
};

// The device's work lies between two of the host's times, and is most of what passes there.
TEST_F(GpuStopwatchTest, TakesTheTimeOfTheDevicesWork) {
  using Clock = std::chrono::steady_clock;
  constexpr int kFills = 200;
  Stopwatch stopwatch(kGpu);
  const at::Tensor values = at::zeros({int64_t{1} << 28}, at::device(kGpu).dtype(at::kFloat));
  synchronize(kGpu);
  const auto start = Clock::now();
  {
    const Lap lap(stopwatch);
    for (int i = 0; i < kFills; ++i) {
      values.fill_(i);
    }
  }
  synchronize(kGpu);
  const std::chrono::nanoseconds host = Clock::now() - start;
  const std::chrono::nanoseconds device(total(stopwatch));
  EXPECT_LE(device, host);
  EXPECT_GE(device, host / 2);
}

TEST_F(GpuStopwatchTest, CountsReplaysOfAGraph) {
  Stopwatch stopwatch(kGpu);
  const at::Tensor values = at::zeros({int64_t{1} << 26}, at::device(kGpu).dtype(at::kFloat));
  values.add_(1.0);  // what is recorded must have run
  Graph graph;
  graph.record([&] {
    const Lap lap(stopwatch);
    values.add_(1.0);
  });
  int64_t before = total(stopwatch);
  EXPECT_EQ(before, 0) << "recording runs nothing";
  for (int replay = 0; replay < 3; ++replay) {
    graph.replay();
    const int64_t after = total(stopwatch);
    EXPECT_GT(after, before);
    before = after;
  }
}

}  // namespace gpu_stopwatch_test
}  // namespace kinora::device
