// The written-out forward and backward, composed of ATen calls. gpu_block_stack_test.cc does the
// same with the kernels.
#include "kinora/ops/block_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kinora/ops/activations_aside.h"
#include "tests/ops/random_stack.h"
#include "tests/tolerances.h"

namespace kinora::ops {
namespace block_stack_test {

class BlockStackTest : public testing::TestWithParam<StackSizes> {};

TEST_P(BlockStackTest, EqualsAutogradAtEveryRecomputation) {
  expect_stack_equals_autograd(GetParam(), at::kCPU, false, tolerance::kOtherOrder);
}

TEST_P(BlockStackTest, WhatIsOffloadedComesBackAsItWas) {
  expect_offloaded_bits(GetParam(), at::kCPU);
}

TEST(OffloadedBlocksTest, AreSpreadEvenlyOverThoseThatMay) {
  const std::vector<bool> may = {false, true, true, true, true, false, true, true, true, false};
  using Blocks = std::vector<bool>;
  EXPECT_EQ(spread_evenly(may, 0), Blocks(10, false));
  EXPECT_EQ(spread_evenly(may, 1), Blocks({0, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(spread_evenly(may, 2), Blocks({0, 1, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(spread_evenly(may, 3), Blocks({0, 1, 0, 0, 1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(spread_evenly(may, 7), may);
  EXPECT_EQ(spread_evenly(may, 8), may);
  EXPECT_EQ(spread_evenly({false}, 1), Blocks({false}));
  // Of 55 any 24 that follow each other evenly are two or three apart.
  const Blocks taken = spread_evenly(Blocks(55, true), 24);
  EXPECT_EQ(std::ranges::count(taken, true), 24);
  for (size_t i = 0; i + 3 <= taken.size(); ++i) {
    const auto begin = taken.begin() + static_cast<std::ptrdiff_t>(i);
    EXPECT_GE(std::count(begin, begin + 3, true), 1) << i;
    EXPECT_LE(std::count(begin, begin + 2, true), 1) << i;
  }
}

TEST(OffloadedBlocksTest, LeaveTheFirstOthersToBeComputedAgain) {
  using Blocks = std::vector<bool>;
  const Blocks taken = {1, 0, 1, 0, 0, 1};
  EXPECT_EQ(first_others(taken, 0), Blocks(6, false));
  EXPECT_EQ(first_others(taken, 2), Blocks({0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(first_others(taken, 3), Blocks({0, 1, 0, 1, 1, 0}));
  EXPECT_EQ(first_others(taken, 9), Blocks({0, 1, 0, 1, 1, 0}));
}

TEST(Fp8ActivationsTest, GradientsAreNearAndForwardIsTheSame) {
  expect_fp8_activations(at::kCPU);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, BlockStackTest,
    testing::Values(StackSizes{.width = 72, .heads = 1, .batch = 1, .tokens = 21},
                    StackSizes{
                        .width = 64, .heads = 2, .batch = 5, .tokens = 9, .one_behind = false},
                    StackSizes{.width = 26, .heads = 2, .batch = 3, .tokens = 7, .depth = 6}),
    [](const auto& info) { return info.param.name(); });

}  // namespace block_stack_test
}  // namespace kinora::ops
