#include "kinora/optim/weight_exchange.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kinora/device/dry_run.h"
#include "kinora/optim/held_weights.h"
#include "tests/optim/exchanged_blocks.h"

namespace kinora::optim {
namespace weight_exchange_test {

using Set = WeightExchange::Set;

class WeightExchangeTest : public testing::TestWithParam<HeldOptions> {};

TEST_P(WeightExchangeTest, BringsEachSetAsItWasLoaded) {
  ExchangedBlocks blocks(GetParam());
  expect_brings_each_set(blocks);
}

// Those who keep a copy of a weight, such as in fp8, see that it is another.
TEST_P(WeightExchangeTest, CountsAsAChangeOfEachWeight) {
  ExchangedBlocks blocks(GetParam());
  WeightExchange exchange(blocks.arena());
  const std::vector<uint32_t> before = blocks.versions();
  exchange.bring(Set::kFirst);
  EXPECT_EQ(blocks.versions(), before);
  exchange.bring(Set::kSecond);
  const std::vector<uint32_t> after = blocks.versions();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_GT(after[i], before[i]) << blocks.named()[i].path;
  }
}

// A pass that ends early has what comes next on its way: the next one does not read it.
TEST_P(WeightExchangeTest, APassThatEndedEarlyLeavesNothing) {
  ExchangedBlocks blocks(GetParam());
  blocks.load_random();
  const std::vector<at::Tensor> first = blocks.read();
  WeightExchange exchange(blocks.arena());
  exchange.bring(Set::kSecond);
  blocks.load_random();
  if (HeldWeights* held = blocks.arena().held()) {
    held->hook()(ops::BucketMoment::kBeforeForward, 1);
  }
  exchange.bring(Set::kFirst);
  expect_equal(blocks.read(), first);
}

// The device has one set, and for the time of the exchange two pieces beside it.
TEST_P(WeightExchangeTest, TakesNoMemoryOfTheDevice) {
  const device::DryRun run(c10::DeviceType::CUDA);
  ExchangedBlocks blocks(GetParam(), at::kMeta, kWideBlocks);
  const int64_t one = device::DryRun::live_bytes();
  WeightExchange exchange(blocks.arena());
  int64_t weights = 0;
  for (const at::Tensor& bytes : blocks.arena().weight_bytes()) {
    weights += bytes.numel();
  }
  EXPECT_GE(exchange.host_bytes(), weights);
  EXPECT_LT(exchange.host_bytes(), weights + 4096);
  EXPECT_EQ(device::DryRun::live_bytes(), one);
  device::DryRun::start_peak_anew();
  exchange.bring(Set::kSecond);
  EXPECT_EQ(device::DryRun::live_bytes(), one);
  EXPECT_LE(device::DryRun::peak_bytes(), one + (int64_t{128} << 20));
}

INSTANTIATE_TEST_SUITE_P(Held, WeightExchangeTest, testing::ValuesIn(exchanged_ways()),
                         name_of_way);

TEST(WideWeightExchangeTest, BringsEachSetPieceByPiece) {
  ExchangedBlocks blocks({.offload = 0.5}, at::kCPU, kWideBlocks);
  expect_brings_each_set(blocks);
}

}  // namespace weight_exchange_test
}  // namespace kinora::optim
