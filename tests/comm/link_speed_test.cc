#include "kinora/comm/link_speed.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace link_speed_test {

TEST(LinkSpeedTest, RingsSendAllButAPart) {
  EXPECT_DOUBLE_EQ(ring_bytes(Operation::kReduceScatter, 4, 1000.0), 750.0);
  EXPECT_DOUBLE_EQ(ring_bytes(Operation::kAllGather, 2, 1000.0), 500.0);
  EXPECT_DOUBLE_EQ(ring_bytes(Operation::kAllReduce, 8, 1000.0), 1750.0);
}

TEST(LinkSpeedTest, FitsALine) {
  const Link line = {20e-6, 50e9};
  const std::vector<double> bytes = {1e4, 1e6, 1e8};
  const std::vector<double> seconds = {line.seconds(1e4), line.seconds(1e6), line.seconds(1e8)};
  const Link fitted = fit_link(bytes, seconds);
  EXPECT_NEAR(fitted.latency, 20e-6, 1e-12);
  EXPECT_NEAR(fitted.bytes_per_s, 50e9, 1.0);
}

TEST(LinkSpeedTest, RelativeErrorsCount) {
  // 10 % too slow at the largest size, which in absolute terms is a hundred times the latency.
  const Link fitted =
      fit_link({1e3, 1e4, 1e5, 1e6, 1e8}, {20.02e-6, 20.2e-6, 22e-6, 40e-6, 2.2e-3});
  EXPECT_NEAR(fitted.latency, 20e-6, 1e-6);
}

TEST(LinkSpeedTest, NoLatencyIsBelowZeroAndNoSpeedBelow) {
  const Link proportional = fit_link({1.0, 2.0}, {1.0, 3.0});  // a line would start at -1
  EXPECT_EQ(proportional.latency, 0.0);
  // The least of (1 s - 1)^2 + (2 / 3 s - 1)^2 over s, seconds a byte: s = 15 / 13.
  EXPECT_NEAR(proportional.bytes_per_s, 13.0 / 15.0, 1e-12);
  const Link level = fit_link({1.0, 2.0}, {2.0, 2.0});
  EXPECT_EQ(level.latency, 2.0);
  EXPECT_TRUE(std::isinf(level.bytes_per_s));
  EXPECT_NE(error_of(ErrorKind::kConfig,
                     [] {
                       return fit_link({5.0, 5.0}, {1.0, 2.0});
                     })
                .find("two sizes"),
            std::string::npos);
}

TEST(LinkSpeedTest, AllRanksGetTheSameFigures) {
  run_on_ranks(4, [](const Group& world) {
    const std::vector<OperationSpeed> speeds = measure(world, at::kCPU);
    ASSERT_EQ(speeds.size(), 3U);
    EXPECT_EQ(speeds[0].operation, Operation::kAllReduce);
    EXPECT_EQ(speeds[1].operation, Operation::kAllGather);
    EXPECT_EQ(speeds[2].operation, Operation::kReduceScatter);
    for (const OperationSpeed& speed : speeds) {
      ASSERT_GE(speed.samples.size(), 2U);
      EXPECT_EQ(speed.samples[0].bytes, 1 << 16);
      EXPECT_EQ(speed.samples[1].bytes, 1 << 19);
      const bool is_slow = 8.0 * speed.samples[1].seconds > 1.0;  // on a very busy machine
      ASSERT_EQ(speed.samples.size(), is_slow ? 2U : 3U);
      EXPECT_TRUE(is_slow || speed.samples[2].bytes == 1 << 22);
      EXPECT_GT(speed.link.bytes_per_s, 0.0);
      EXPECT_GE(speed.link.latency, 0.0);
      for (const LinkSample& sample : speed.samples) {
        EXPECT_GT(sample.seconds, 0.0);
        // Alike on all ranks: their largest is everyone's.
        const at::Tensor seconds = at::empty({1}, at::kFloat);
        seconds.fill_(sample.seconds);
        world.all_reduce(seconds, Reduction::kMax);
        EXPECT_EQ(seconds.item<float>(), static_cast<float>(sample.seconds));
      }
    }
  });
}

TEST(LinkSpeedTest, OneRankHasNoLink) {
  for (const OperationSpeed& speed : measure(Group(), at::kCPU)) {
    EXPECT_TRUE(speed.samples.empty());
    EXPECT_EQ(speed.link.seconds(1e9), 0.0);
  }
}

}  // namespace link_speed_test
}  // namespace kinora::comm
