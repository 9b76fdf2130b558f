#include "kinora/kernels/cuda/graph_memsets.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/kernels/device_array.h"
#include "tests/kernels/graph_nodes.h"

namespace kinora::kernels {
namespace gpu_graph_memsets_test {

using GpuGraphMemsetsTest = GpuTest;

struct Memset {
  size_t first;
  size_t bytes;
  int value;
};

// They overlap, so that their order shows.
TEST_F(GpuGraphMemsetsTest, ShortOnesOfWholeWordsBecomeKernelsThatDoTheSame) {
  constexpr Memset kReplaced[] = {{0, 64, 0x11}, {8, 4, 0}, {60, 16'384, 0x5a}, {16'000, 8, 0xff}};
  constexpr Memset kKept[] = {{2, 3, 7}, {61, 8, 9}, {16'100, 16'388, 0x33}};
  std::vector<uint8_t> want(40'000, 200);
  const DeviceArray<uint8_t> bytes(want);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const auto enqueue = [&](const Memset& memset) {
    EXPECT_EQ(cudaMemsetAsync(bytes.data() + memset.first, memset.value, memset.bytes, stream),
              cudaSuccess);
    std::memset(want.data() + memset.first, memset.value, memset.bytes);
  };
  for (size_t i = 0; i < std::size(kReplaced); ++i) {
    enqueue(kReplaced[i]);
    if (i < std::size(kKept)) {
      enqueue(kKept[i]);
    }
  }
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(std::ssize(memsets_of(graph)), std::ssize(kReplaced) + std::ssize(kKept));

  EXPECT_EQ(cuda::replace_memsets(graph), cudaSuccess);
  EXPECT_EQ(std::ssize(memsets_of(graph)), std::ssize(kKept));
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(bytes.host(), want);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace gpu_graph_memsets_test
}  // namespace kinora::kernels
