#include "kinora/kernels/cuda/graph_counters.h"

#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kinora/core/cuda.h"

namespace kinora::kernels::cuda {
namespace {

/// The workspaces of one GraphCounters.
struct Area {
  uintptr_t begin;
  size_t bytes;

  auto operator<=>(const Area&) const = default;
};

std::mutex g_mutex;
std::set<Area> g_areas;  // guarded by g_mutex

std::set<Area> areas() {
  const std::lock_guard lock(g_mutex);
  return g_areas;
}

struct Memset {
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool clears = false;  ///< one row of zeros
};

/// Whether the node is a memset, and which.
cudaError_t read_memset(cudaGraphNode_t node, bool* is_memset, Memset* memset) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  cudaError_t error = cudaGraphNodeGetType(node, &type);
  *is_memset = error == cudaSuccess && type == cudaGraphNodeTypeMemset;
  if (*is_memset) {
    cudaMemsetParams params = {};
    error = cudaGraphMemsetNodeGetParams(node, &params);
    *memset = {reinterpret_cast<uintptr_t>(params.dst), params.width * params.elementSize,
               params.value == 0 && params.height == 1};
  }
  return error;
}

/// The only node behind this one; null where there are none or several, or where they do not just
/// wait for its end.
cudaError_t only_successor(cudaGraphNode_t node, cudaGraphNode_t* successor) {
  *successor = nullptr;
  size_t count = 0;
  cudaError_t error = cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &count);
  if (error == cudaSuccess && count == 1) {
    error = cudaGraphNodeGetDependentNodes(node, successor, nullptr, &count);
  }
  if (error == cudaErrorLossyQuery) {
    *successor = nullptr;
    static_cast<void>(cudaGetLastError());
    return cudaSuccess;
  }
  return error;
}

/// Takes out a node between two others, or the first of a chain.
cudaError_t take_out(cudaGraph_t graph, cudaGraphNode_t node, bool* done) {
  *done = false;
  size_t num_before = 0;
  cudaGraphNode_t before = nullptr;
  cudaGraphNode_t behind = nullptr;
  cudaError_t error = cudaGraphNodeGetDependencies(node, nullptr, nullptr, &num_before);
  if (error == cudaSuccess && num_before == 1) {
    error = cudaGraphNodeGetDependencies(node, &before, nullptr, &num_before);
  }
  if (error == cudaSuccess) {
    error = only_successor(node, &behind);
  }
  if (error != cudaSuccess || num_before > 1 || behind == nullptr) {
    return error;
  }
  *done = true;
  if (before != nullptr) {
    error = cudaGraphAddDependencies(graph, &before, &behind, nullptr, 1);
  }
  return error == cudaSuccess ? cudaGraphDestroyNode(node) : error;
}

/// Of those behind a memset of the whole area, until the next one. num_dropped: in/out.
cudaError_t drop_behind(cudaGraph_t graph, cudaGraphNode_t clear, const Area& area,
                        size_t* num_dropped) {
  std::vector<bool> was_used(area.bytes / GraphCounters::kWorkspaceBytes, false);
  cudaGraphNode_t before = clear;
  while (true) {
    cudaGraphNode_t node = nullptr;
    cudaError_t error = only_successor(before, &node);
    if (error != cudaSuccess || node == nullptr) {
      return error;
    }
    bool is_memset = false;
    bool was_dropped = false;
    Memset memset;
    error = read_memset(node, &is_memset, &memset);
    if (error == cudaSuccess && is_memset && memset.begin >= area.begin &&
        memset.begin - area.begin < area.bytes) {
      if (memset.bytes == area.bytes) {
        return cudaSuccess;  // the next one
      }
      const size_t offset = memset.begin - area.begin;
      const size_t place = offset / GraphCounters::kWorkspaceBytes;
      if (memset.clears && !was_used[place] &&
          offset % GraphCounters::kWorkspaceBytes + memset.bytes <=
              GraphCounters::kWorkspaceBytes) {
        error = take_out(graph, node, &was_dropped);
      }
      was_used[place] = true;
    }
    if (error != cudaSuccess) {
      return error;
    }
    if (was_dropped) {
      ++*num_dropped;
    } else {
      before = node;
    }
  }
}

}  // namespace

GraphCounters::GraphCounters() {
  KINORA_CUDA_CHECK(cudaMalloc(&memory_, kCount * kWorkspaceBytes));
  const std::lock_guard lock(g_mutex);
  g_areas.insert({reinterpret_cast<uintptr_t>(memory_), kCount * kWorkspaceBytes});
}

GraphCounters::~GraphCounters() {
  {
    const std::lock_guard lock(g_mutex);
    g_areas.erase({reinterpret_cast<uintptr_t>(memory_), kCount * kWorkspaceBytes});
  }
  cudaFree(memory_);
}

void* GraphCounters::next(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long recording = 0;
  KINORA_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &recording));
  if (status == cudaStreamCaptureStatusNone) {
    return nullptr;
  }
  if (recording != recording_ || stream != stream_ || num_given_ == kCount) {
    KINORA_CUDA_CHECK(cudaMemsetAsync(memory_, 0, kCount * kWorkspaceBytes, stream));
    recording_ = recording;
    stream_ = stream;
    num_given_ = 0;
  }
  return static_cast<std::byte*>(memory_) + num_given_++ * kWorkspaceBytes;
}

cudaError_t drop_repeated_clears(cudaGraph_t graph) {
  size_t num_nodes = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &num_nodes);
  std::vector<cudaGraphNode_t> nodes(num_nodes);
  if (error == cudaSuccess && num_nodes > 0) {
    error = cudaGraphGetNodes(graph, nodes.data(), &num_nodes);
  }
  std::vector<std::pair<cudaGraphNode_t, Area>> clears;
  const std::set<Area> known = areas();
  for (size_t i = 0; i < num_nodes && error == cudaSuccess; ++i) {
    bool is_memset = false;
    Memset memset;
    error = read_memset(nodes[i], &is_memset, &memset);
    const Area area{memset.begin, memset.bytes};
    if (is_memset && memset.clears && known.contains(area)) {
      clears.emplace_back(nodes[i], area);
    }
  }
  for (const auto& [clear, area] : clears) {
    size_t num_dropped = 0;
    if (error == cudaSuccess) {
      error = drop_behind(graph, clear, area, &num_dropped);
    }
    if (error == cudaSuccess && num_dropped == 0) {
      bool was_dropped = false;
      error = take_out(graph, clear, &was_dropped);  // nobody counts
    }
  }
  return error;
}

}  // namespace kinora::kernels::cuda
