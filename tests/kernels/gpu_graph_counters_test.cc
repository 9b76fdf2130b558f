#include "kinora/kernels/cuda/graph_counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kinora/kernels/cuda/graph_memsets.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/graph_nodes.h"

namespace kinora::kernels {
namespace gpu_graph_counters_test {

using cuda::GraphCounters;

constexpr int kDirt = 0x77;

/// Records "products": each copies the first word of its workspace to its place in a result, and
/// leaves dirt in the workspace.
class GpuGraphCountersTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    counters_ = std::make_unique<GraphCounters>();
    result_ = std::make_unique<DeviceArray<uint32_t>>(std::vector<uint32_t>(1000, 5));
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&beside_), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  void TearDown() override {
    if (IsSkipped()) {
      return;
    }
    EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(beside_), cudaSuccess);
  }

  void clear(void* workspace) {
    EXPECT_EQ(cudaMemsetAsync(workspace, 0, sizeof(uint32_t), stream_), cudaSuccess);
  }
  void multiply(void* workspace) {
    EXPECT_EQ(cudaMemcpyAsync(result_->data() + num_products_++, workspace, sizeof(uint32_t),
                              cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(workspace, kDirt, GraphCounters::kWorkspaceBytes, stream_),
              cudaSuccess);
  }
  /// Memsets that are left, but for those that leave dirt.
  int64_t finish() {
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_EQ(cuda::drop_repeated_clears(graph_), cudaSuccess);
    return std::ranges::count(memsets_of(graph_), 0U, &cudaMemsetParams::value);
  }
  /// After the graph has run several times.
  std::vector<uint32_t> results() {
    EXPECT_EQ(cuda::replace_memsets(graph_), cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph_, 0), cudaSuccess);
    for (int run = 0; run < 3; ++run) {
      EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    std::vector<uint32_t> results = result_->host();
    results.resize(num_products_);
    return results;
  }

  std::unique_ptr<GraphCounters> counters_;
  std::unique_ptr<DeviceArray<uint32_t>> result_;
  size_t num_products_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaStream_t beside_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

TEST_F(GpuGraphCountersTest, OneMemsetClearsForManyProducts) {
  constexpr size_t kProducts = 200;
  for (size_t i = 0; i < kProducts; ++i) {
    void* const workspace = counters_->next(stream_);
    clear(workspace);
    multiply(workspace);
  }
  EXPECT_EQ(finish(), 4) << "of 64 workspaces each";
  EXPECT_EQ(results(), std::vector<uint32_t>(kProducts, 0));
}

TEST_F(GpuGraphCountersTest, AProductMayClearTwice) {
  void* const workspace = counters_->next(stream_);
  clear(workspace);
  multiply(workspace);
  clear(workspace);
  multiply(workspace);
  EXPECT_EQ(finish(), 2);
  EXPECT_EQ(results(), std::vector<uint32_t>(2, 0));
}

TEST_F(GpuGraphCountersTest, ProductsThatClearNothingCostNothing) {
  for (int i = 0; i < 100; ++i) {
    (void)counters_->next(stream_);
    EXPECT_EQ(cudaMemsetAsync(result_->data() + i, kDirt, sizeof(uint32_t), stream_), cudaSuccess);
  }
  EXPECT_EQ(finish(), 0);
  EXPECT_EQ(result_->host().front(), 5U);
}

TEST_F(GpuGraphCountersTest, BehindAForkAllStay) {
  void* workspace = counters_->next(stream_);
  clear(workspace);
  multiply(workspace);
  cudaEvent_t fork = nullptr;
  cudaEvent_t join = nullptr;
  ASSERT_EQ(cudaEventCreate(&fork), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&join), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(beside_, fork), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(result_->data() + 999, kDirt, sizeof(uint32_t), beside_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(join, beside_), cudaSuccess);
  workspace = counters_->next(stream_);
  clear(workspace);
  multiply(workspace);
  ASSERT_EQ(cudaStreamWaitEvent(stream_, join), cudaSuccess);
  workspace = counters_->next(stream_);
  clear(workspace);
  multiply(workspace);
  EXPECT_EQ(finish(), 3) << "that of all, and two";
  EXPECT_EQ(results(), std::vector<uint32_t>(3, 0));
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
}

TEST_F(GpuGraphCountersTest, OnlyRecordingsHaveWorkspaces) {
  EXPECT_EQ(counters_->next(beside_), nullptr);
  EXPECT_NE(counters_->next(stream_), nullptr);
  EXPECT_EQ(finish(), 1);
}

}  // namespace gpu_graph_counters_test
}  // namespace kinora::kernels
