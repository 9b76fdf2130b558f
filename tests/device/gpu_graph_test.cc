// Graphs that share their memory.

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kinora/core/cuda.h"
#include "kinora/device/graph.h"

namespace kinora::device {
namespace gpu_graph_test {

constexpr int64_t kMiB = int64_t{1} << 20;

/// out = 2 in + 1, with 8 MiB in between for each of `size`.
struct Work {
  explicit Work(int64_t size)
      : in(at::zeros({2 * size, kMiB}, at::kCUDA)), out(at::zeros({}, at::kCUDA)) {}
  void operator()() const { out.copy_((in * 2.0 + 1.0).mean()); }

  at::Tensor in;
  at::Tensor out;
};

TEST(GpuGraphTest, GraphsOfAPoolTakeTheMemoryOfTheLargest) {
  if (!cuda_available()) {
    GTEST_SKIP() << "there is no GPU: " << cuda_unavailable_reason();
  }
  GraphPool pool;
  const Work large(8);
  const Work same(8);
  const Work small(3);
  Graph graphs[3];
  std::vector<int64_t> taken;
  const Work* const works[] = {&large, &same, &small};
  for (int i = 0; i < 3; ++i) {
    (*works[i])();
    graphs[i].record(*works[i], &pool);
    taken.push_back(pool.num_bytes());
  }
  EXPECT_GE(taken[0], 64 * kMiB);
  EXPECT_LE(taken[0], 160 * kMiB);  // two tensors of 64 MiB
  EXPECT_LE(taken[1] - taken[0], 4 * kMiB);
  EXPECT_LE(taken[2] - taken[0], 4 * kMiB);
  for (int round = 0; round < 3; ++round) {
    for (int i = 2; i >= 0; --i) {
      works[i]->in.fill_(10.0 * round + i);
      graphs[i].replay();
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(works[i]->out.item<double>(), 2.0 * (10.0 * round + i) + 1.0);
    }
  }
}

TEST(GpuGraphTest, TellsWhatWorkNeeds) {
  if (!cuda_available()) {
    GTEST_SKIP() << "there is no GPU: " << cuda_unavailable_reason();
  }
  const Work work(8);
  work();
  const int64_t free = free_bytes();
  const int64_t needs = reserved_by(work);
  EXPECT_GE(needs, 64 * kMiB);
  EXPECT_LE(needs, 160 * kMiB);
  EXPECT_EQ(reserved_by(work), needs);
  EXPECT_EQ(free_bytes(), free);
}

}  // namespace gpu_graph_test
}  // namespace kinora::device
