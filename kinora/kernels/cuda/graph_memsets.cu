#include <cstdint>
#include <vector>

#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/graph_memsets.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr size_t kMostBytes = 16 << 10;
constexpr size_t kWord = sizeof(uint32_t);

__global__ void __launch_bounds__(kThreads)
    memset_kernel(uint32_t* words, uint32_t value, unsigned count) {
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    words[i] = value;
  }
}

bool is_short(const cudaMemsetParams& memset) {
  const size_t bytes = memset.width * memset.elementSize;
  return memset.height == 1 && bytes > 0 && bytes <= kMostBytes && bytes % kWord == 0 &&
         is_aligned_to<kWord>(memset.dst);
}

/// Its value as often as a word takes it.
uint32_t word_of(const cudaMemsetParams& memset) {
  switch (memset.elementSize) {
    case 1:
      return (memset.value & 0xffU) * 0x01010101U;
    case 2:
      return (memset.value & 0xffffU) * 0x00010001U;
    default:
      return memset.value;
  }
}

/// A kernel that does what the memset does, with the same neighbours.
cudaError_t replace(cudaGraph_t graph, cudaGraphNode_t node, const cudaMemsetParams& memset) {
  size_t num_before = 0;
  size_t num_behind = 0;
  cudaError_t error = cudaGraphNodeGetDependencies(node, nullptr, nullptr, &num_before);
  if (error == cudaSuccess) {
    error = cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &num_behind);
  }
  std::vector<cudaGraphNode_t> before(num_before);
  std::vector<cudaGraphNode_t> behind(num_behind);
  if (error == cudaSuccess && num_before > 0) {
    error = cudaGraphNodeGetDependencies(node, before.data(), nullptr, &num_before);
  }
  if (error == cudaSuccess && num_behind > 0) {
    error = cudaGraphNodeGetDependentNodes(node, behind.data(), nullptr, &num_behind);
  }
  if (error != cudaSuccess) {
    return error;
  }
  void* words = memset.dst;
  uint32_t value = word_of(memset);
  auto count = static_cast<unsigned>(memset.width * memset.elementSize / kWord);
  void* arguments[] = {&words, &value, &count};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(memset_kernel);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments;
  cudaGraphNode_t replacement = nullptr;
  error = cudaGraphAddKernelNode(&replacement, graph, before.data(), num_before, &kernel);
  if (error == cudaSuccess && num_behind > 0) {
    const std::vector<cudaGraphNode_t> from(num_behind, replacement);
    error = cudaGraphAddDependencies(graph, from.data(), behind.data(), nullptr, num_behind);
  }
  return error == cudaSuccess ? cudaGraphDestroyNode(node) : error;
}

}  // namespace

cudaError_t replace_memsets(cudaGraph_t graph) {
  size_t num_nodes = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &num_nodes);
  std::vector<cudaGraphNode_t> nodes(num_nodes);
  if (error == cudaSuccess && num_nodes > 0) {
    error = cudaGraphGetNodes(graph, nodes.data(), &num_nodes);
  }
  for (size_t i = 0; i < num_nodes && error == cudaSuccess; ++i) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    error = cudaGraphNodeGetType(nodes[i], &type);
    if (error != cudaSuccess || type != cudaGraphNodeTypeMemset) {
      continue;
    }
    cudaMemsetParams memset = {};
    error = cudaGraphMemsetNodeGetParams(nodes[i], &memset);
    if (error == cudaSuccess && is_short(memset)) {
      error = replace(graph, nodes[i], memset);
    }
  }
  return error;
}

}  // namespace kinora::kernels::cuda
