// The written-out forward and backward, composed of ATen calls. gpu_block_stack_test.cc does the
// same with the kernels.
#include "kinora/ops/block_stack.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kinora/ops/activations_aside.h"
#include "tests/error_of.h"
#include "tests/ops/random_stack.h"
#include "tests/tolerances.h"

namespace kinora::ops {
namespace block_stack_test {

using testing::HasSubstr;

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

TEST(PartsOfASampleTest, MustBeTwo) {
  constexpr int64_t kWidth = 8;
  BlockKernels kernels({}, at::kCPU, at::kFloat, /*deterministic=*/true);
  const auto run = [&](int64_t vectors, int64_t first_rows) {
    BlockStack stack{
        .blocks = {{.branches = {{.body = FunctionBody{[](const at::Tensor& rows) { return rows; },
                                                       {}}}}}},
        .has_final_norm = false};
    (void)run_blocks(kernels, std::move(stack),
                     {.x = normal({2, 4, kWidth}, 1),
                      .vectors = at::empty({vectors, 0}, at::kFloat),
                      .first_rows = first_rows});
  };
  run(4, 3);
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { run(4, 4); }), HasSubstr("4 rows of 4"));
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { run(5, 3); }), HasSubstr("vectors [5, 0]"));
}

// Also without biases, and where others lie between them.
TEST(HostModulationTest, MakesTheSameVectors) {
  constexpr int64_t kWidth = 32;
  constexpr int64_t kVectors = 2;
  BlockKernels kernels({}, at::kCPU, at::kFloat, /*deterministic=*/true);
  BlockStack stack;
  for (int64_t i = 0; i < 3; ++i) {
    stack.blocks.push_back({.branches = {}, .num_vectors = kVectors});
    LinearWeights slab;
    slab.weight = normal({kVectors * kWidth, kWidth}, 10 + i);
    slab.bias = i == 1 ? at::Tensor() : normal({kVectors * kWidth}, 20 + i);
    stack.modulation.push_back(slab);
    stack.modulation_buckets.push_back(i);
  }
  const at::Tensor condition = normal({5, kWidth}, 1);
  const at::Tensor given = normal({5, 2 * kWidth}, 2);
  const at::Tensor want = stack_vectors(kernels, stack, kWidth, condition, given);
  std::vector<HostWeight> at_host;
  for (const size_t i : {size_t{1}, size_t{2}}) {
    const at::Tensor& weight = stack.modulation[i].weight;
    at_host.push_back({.rows = weight.size(0), .width = kWidth, .plain = weight, .codes = {}});
  }
  const auto products = std::make_shared<HostProducts>(std::move(at_host), at::kCPU);
  for (const size_t i : {size_t{1}, size_t{2}}) {
    LinearWeights& slab = stack.modulation[i];
    slab.at_host = {.products = products, .number = i - 1};
    slab.weight = at::empty_like(slab.weight, at::kMeta);
  }
  const at::Tensor got = stack_vectors(kernels, stack, kWidth, condition, given);
  EXPECT_LT(relative_error(got, want), tolerance::kOtherOrder);
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
