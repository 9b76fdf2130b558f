#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

namespace kinora::kernels {

/// Those that a graph has, in no order.
inline std::vector<cudaMemsetParams> memsets_of(cudaGraph_t graph) {
  size_t count = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &count), cudaSuccess);
  std::vector<cudaGraphNode_t> nodes(count);
  EXPECT_EQ(cudaGraphGetNodes(graph, nodes.data(), &count), cudaSuccess);
  std::vector<cudaMemsetParams> memsets;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    EXPECT_EQ(cudaGraphNodeGetType(node, &type), cudaSuccess);
    if (type == cudaGraphNodeTypeMemset) {
      memsets.emplace_back();
      EXPECT_EQ(cudaGraphMemsetNodeGetParams(node, &memsets.back()), cudaSuccess);
    }
  }
  return memsets;
}

}  // namespace kinora::kernels
