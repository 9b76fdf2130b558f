#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/optim/weight_exchange.h"
#include "tests/optim/exchanged_blocks.h"

namespace kinora::optim {
namespace gpu_weight_exchange_test {

const at::Device kGpu(at::kCUDA, 0);

class GpuWeightExchangeTest : public testing::TestWithParam<HeldOptions> {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

TEST_P(GpuWeightExchangeTest, BringsEachSetPieceByPiece) {
  ExchangedBlocks blocks(GetParam(), kGpu, kWideBlocks);
  expect_brings_each_set(blocks);
}

// One set, and two pieces of 64 MiB while they move.
TEST_P(GpuWeightExchangeTest, TakesNoMemoryOfTheGpu) {
  ExchangedBlocks blocks(GetParam(), kGpu, kWideBlocks);
  at::accelerator::resetPeakStats(kGpu.index());
  const int64_t one = device::peak_memory(kGpu);
  WeightExchange exchange(blocks.arena());
  EXPECT_EQ(device::peak_memory(kGpu), one);
  exchange.bring(WeightExchange::Set::kSecond);
  EXPECT_LE(device::peak_memory(kGpu), one + (int64_t{128} << 20));
  at::accelerator::resetPeakStats(kGpu.index());
  EXPECT_EQ(device::peak_memory(kGpu), one);
}

INSTANTIATE_TEST_SUITE_P(Held, GpuWeightExchangeTest, testing::ValuesIn(exchanged_ways()),
                         name_of_way);

}  // namespace gpu_weight_exchange_test
}  // namespace kinora::optim
