#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "kinora/kernels/low_rank.h"

/// Launchers of kernels/low_rank.h (rules of this folder: cuda/random.h). All pointers are device
/// memory.
namespace kinora::kernels::cuda {

/// Whether there are kernels for these sizes: 16-bit floats, a rank of 8, 16, 32 or 64, `in` and
/// `out` multiples of 8, on a GPU that gives a block the 161 (rank 8) to 224 KiB (rank 64) of
/// shared memory that backward takes. Matrices start their rows on 16 bytes.
[[nodiscard]] bool low_rank_supported(DType type, int64_t in, int64_t out, int64_t rank);

/// kernels::low_rank_forward on the device.
[[nodiscard]] cudaError_t low_rank_forward(const LowRankForward& call, cudaStream_t stream);

/// Bytes of low_rank_backward's scratch.
[[nodiscard]] size_t low_rank_backward_workspace_bytes(int64_t rows, int64_t in, int64_t out,
                                                       int64_t rank);

/// The first half of kernels::low_rank_backward on the device: dlow, and parts of the factors'
/// gradients, which stay in `workspace` until low_rank_add_gradients has read them.
[[nodiscard]] cudaError_t low_rank_backward(const LowRankBackward& call, void* workspace,
                                            cudaStream_t stream);

/// A call of low_rank_backward and its workspace.
struct LowRankParts {
  LowRankBackward call;
  const void* workspace = nullptr;
};
inline constexpr size_t kMaxLowRankParts = 8;

/// The second half, of up to kMaxLowRankParts calls at once: adds up the factors' gradients, in an
/// order that depends on the sizes alone.
[[nodiscard]] cudaError_t low_rank_add_gradients(std::span<const LowRankParts> parts,
                                                 cudaStream_t stream);

}  // namespace kinora::kernels::cuda
