#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "kinora/device/graph.h"
#include "kinora/device/host_memory.h"
#include "kinora/ops/host_product.h"
#include "tests/ops/on_gpu.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::ops {
namespace gpu_host_product_test {

// What graphs have recorded is computed anew by each replay, from what x is then, also when other
// numbers of vectors came in between.
TEST(GpuHostProductTest, FollowsTheDevicesStreamAndItsGraphs) {
  if (!begin_on_gpu()) {
    GTEST_SKIP() << "needs a GPU with its kernels";
  }
  constexpr int64_t kWidth = 512;
  constexpr int64_t kRows = 3000;
  constexpr size_t kWeights = 5;
  std::vector<HostWeight> weights;
  for (size_t i = 0; i < kWeights; ++i) {
    const at::Tensor plain = device::zeros_in_host_memory(kRows * kWidth, at::kBFloat16, at::kCUDA)
                                 .view({kRows, kWidth});
    plain.copy_(normal({kRows, kWidth}, static_cast<int64_t>(i)));
    weights.push_back({.rows = kRows, .width = kWidth, .plain = plain, .codes = {}});
  }
  const auto all = weights;
  HostProducts products(std::move(weights), at::kCUDA);
  const at::Tensor x = at::zeros({1, kWidth}, at::device(at::kCUDA).dtype(at::kBFloat16));
  const at::Tensor sums = at::zeros({1, kRows}, at::kCUDA);
  const auto multiply = [&products](const at::Tensor& in, const at::Tensor& out) {
    products.begin({0, 1, 2, 3, 4}, in);
    out.zero_();
    for (size_t i = 0; i < kWeights; ++i) {
      out.add_(products.result(i));
    }
  };
  const auto want = [&all](const at::Tensor& in) {
    at::Tensor sum = at::zeros({in.size(0), kRows}, at::kCUDA);
    for (const HostWeight& weight : all) {
      sum.add_(at::linear(in.to(at::kFloat), weight.plain.to(at::kFloat)));
    }
    return sum;
  };
  multiply(x, sums);  // outside of a graph first
  device::Graph graph;
  graph.record([&] { multiply(x, sums); });
  const at::Tensor several = normal({3, kWidth}, 90).to(at::kCUDA, at::kBFloat16);
  const at::Tensor own_sums = at::zeros({3, kRows}, at::kCUDA);
  for (int64_t round = 0; round < 20; ++round) {
    x.copy_(normal({1, kWidth}, 50 + round));
    graph.replay();
    EXPECT_LT(relative_error(sums, want(x)), tolerance::kOtherOrder) << round;
    multiply(several, own_sums);
    EXPECT_LT(relative_error(own_sums, want(several)), tolerance::kOtherOrder) << round;
  }
}

}  // namespace gpu_host_product_test
}  // namespace kinora::ops
