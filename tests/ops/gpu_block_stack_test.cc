// A stack of blocks by its kernels on a GPU against autograd on the same GPU.

#include <gtest/gtest.h>

#include <cstdlib>

#include "kinora/device/device.h"
#include "tests/ops/random_stack.h"
#include "tests/tolerances.h"

namespace kinora::ops {
namespace gpu_block_stack_test {

class GpuBlockStackTest : public testing::TestWithParam<StackSizes> {
 protected:
  static void SetUpTestSuite() {
    // Algorithms are neither taken from nor left to other runs.
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("HOME");
    // It also fills new tensors with NaN: what is read but was never written is seen.
    device::configure_computation(0, true);
  }
};

TEST_P(GpuBlockStackTest, EqualsAutogradAtEveryRecomputation) {
  const at::Device gpu(at::kCUDA, 0);
  if (!device::best_device().is_cuda() || !BlockKernels::worthwhile(gpu, at::kBFloat16)) {
    GTEST_SKIP() << "there is no GPU that has the kernels";
  }
  expect_stack_equals_autograd(GetParam(), gpu, true, tolerance::kGpuKernels);
}

TEST_P(GpuBlockStackTest, WhatIsOffloadedComesBackAsItWas) {
  const at::Device gpu(at::kCUDA, 0);
  if (!device::best_device().is_cuda() || !BlockKernels::worthwhile(gpu, at::kBFloat16)) {
    GTEST_SKIP() << "there is no GPU that has the kernels";
  }
  StackSizes sizes = GetParam();
  sizes.depth = 6;  // more blocks than are on the link at once
  expect_offloaded_bits(sizes, gpu);
}

TEST_P(GpuBlockStackTest, ActivationsInFp8AreNear) {
  const at::Device gpu(at::kCUDA, 0);
  if (!device::best_device().is_cuda() || !BlockKernels::worthwhile(gpu, at::kBFloat16)) {
    GTEST_SKIP() << "there is no GPU that has the kernels";
  }
  if (GetParam().width == 128) {
    expect_fp8_activations(gpu);
  }
}

// Head dims of the recipes; numbers of tokens that fill no tile; a width that is no multiple of 8,
// whose rows are not aligned and whose heads no fused attention has.
INSTANTIATE_TEST_SUITE_P(
    Sizes, GpuBlockStackTest,
    testing::Values(StackSizes{.width = 144, .heads = 2, .batch = 1, .tokens = 133},
                    StackSizes{
                        .width = 128, .heads = 2, .batch = 257, .tokens = 5, .one_behind = false},
                    StackSizes{.width = 144, .heads = 2, .batch = 257, .tokens = 9},
                    StackSizes{.width = 52, .heads = 2, .batch = 3, .tokens = 17}),
    [](const auto& info) { return info.param.name(); });

}  // namespace gpu_block_stack_test
}  // namespace kinora::ops
