#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace kinora::kernels::cuda {

/// Small workspaces for the products that CUDA graphs record. cuBLASLt clears a counter of 4 bytes
/// before most products of many tiles, which takes a kernel's time between two kernels of a graph.
/// Where each counts in a place of its own, one memset clears them all, and drop_repeated_clears()
/// takes the others away.
///
/// Of the device that is current when it is made. As with any workspace, what is recorded runs one
/// after the other, and no graph with it runs once it is gone.
class GraphCounters {
 public:
  static constexpr size_t kWorkspaceBytes = 256;

  GraphCounters();
  ~GraphCounters();
  GraphCounters(const GraphCounters&) = delete;
  GraphCounters& operator=(const GraphCounters&) = delete;

  /// kWorkspaceBytes for the next call of a library that `stream` records: all zero when it begins.
  /// Each time another; before the first of a recording, and once all were given, it records a
  /// memset of all. Null where the stream does not record.
  [[nodiscard]] void* next(cudaStream_t stream);

 private:
  static constexpr size_t kCount = 64;

  void* memory_ = nullptr;
  size_t num_given_ = 0;
  cudaStream_t stream_ = nullptr;
  unsigned long long recording_ = 0;
};

/// Takes the memsets that clear a workspace of GraphCounters out of a graph where it is clear: the
/// first of each workspace behind a memset of all. Those behind a fork stay. The memset of all
/// goes, too, where nothing is left to it.
/// @param graph  not instantiated yet; in/out.
[[nodiscard]] cudaError_t drop_repeated_clears(cudaGraph_t graph);

}  // namespace kinora::kernels::cuda
