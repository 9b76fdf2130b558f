#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kinora/core/dtype.h"

/// Kernels of several GPUs of one host that write to each other's memory (rules of this folder:
/// cuda/random.h). They have no counterpart on the CPU, which has one memory.
namespace kinora::kernels::cuda {

inline constexpr int kMaxPeers = 16;

/// Where a GPU is told that others have arrived. One a GPU, which all can write to, zero at first.
struct PeerFlags {
  uint32_t arrivals[kMaxPeers];  ///< by each GPU: its barriers so far
  uint32_t barriers;             ///< begun by this GPU
};

struct PeerBarrier {
  int rank = 0;
  int size = 0;
  PeerFlags* flags[kMaxPeers] = {};  ///< device pointers, by rank
};

/// Ends when it runs on all GPUs: what each did before, in its stream, is seen by all after it. All
/// make the same calls in the same order; captured ones may be replayed. One block, which spins.
[[nodiscard]] cudaError_t peer_barrier(const PeerBarrier& barrier, cudaStream_t stream);

/// Copies part p of `source` to `targets[p]` + rank * target_part, for every p < size. A part is
/// `outer` times `rows` runs of `run` bytes; the steps are bytes too.
struct PeerScatter {
  int rank = 0;
  int size = 0;
  bool skips_own = false;  ///< not for p = rank
  int64_t outer = 0;
  int64_t rows = 0;
  int64_t run = 0;
  int64_t source_part = 0;
  int64_t source_outer = 0;
  int64_t source_row = 0;
  int64_t target_part = 0;
  int64_t target_outer = 0;
  int64_t target_row = 0;
  const void* source = nullptr;
  void* targets[kMaxPeers] = {};
};

/// Pointers, runs and steps of 16-byte multiples are fastest; any works. cudaErrorInvalidValue for
/// parts of 2^32 vectors or more.
[[nodiscard]] cudaError_t peer_scatter(const PeerScatter& scatter, cudaStream_t stream);

/// out[i] = the sum of parts[p][i] over p < size, in fp32 and in this order, then rounded.
struct PeerSum {
  int size = 0;
  int64_t count = 0;  ///< of elements, a multiple of 8
  DType type = DType::kBF16;
  const void* parts[kMaxPeers] = {};  ///< of this GPU's memory, aligned to 16 bytes, as out
  void* out = nullptr;                ///< may be a part
};

[[nodiscard]] cudaError_t peer_sum(const PeerSum& sum, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
