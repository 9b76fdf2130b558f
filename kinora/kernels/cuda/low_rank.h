#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/low_rank.h"

/// Launchers of kernels/low_rank.h (rules of this folder: cuda/random.h). All pointers are device
/// memory.
namespace kinora::kernels::cuda {

/// Whether there are kernels for these sizes: 16-bit floats, a rank of 8, 16, 32 or 64, `in` and
/// `out` multiples of 8. Matrices that are read start their rows on 16 bytes.
[[nodiscard]] bool low_rank_supported(DType type, int64_t in, int64_t out, int64_t rank);

/// kernels::low_rank_forward on the device.
[[nodiscard]] cudaError_t low_rank_forward(const LowRankForward& call, cudaStream_t stream);

/// Bytes of low_rank_backward's scratch.
[[nodiscard]] size_t low_rank_backward_workspace_bytes(int64_t rows, int64_t in, int64_t out,
                                                       int64_t rank);

/// kernels::low_rank_backward on the device, in an order that depends on the sizes alone.
/// `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t low_rank_backward(const LowRankBackward& call, void* workspace,
                                            cudaStream_t stream);

}  // namespace kinora::kernels::cuda
