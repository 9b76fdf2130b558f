// The written-out forward and backward, composed of ATen calls. gpu_block_stack_test.cc does the
// same with the kernels.
#include "kinora/ops/block_stack.h"

#include <gtest/gtest.h>

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

TEST(Fp8ActivationsTest, GradientsAreNearAndForwardIsTheSame) {
  expect_fp8_activations(at::kCPU);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, BlockStackTest,
    testing::Values(StackSizes{.width = 72, .heads = 1, .batch = 1, .tokens = 21},
                    StackSizes{
                        .width = 64, .heads = 2, .batch = 5, .tokens = 9, .one_behind = false},
                    StackSizes{.width = 26, .heads = 2, .batch = 3, .tokens = 7}),
    [](const auto& info) { return info.param.name(); });

}  // namespace block_stack_test
}  // namespace kinora::ops
