#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/group_norm.h"

/// Launchers of kernels/group_norm.h (rules of this folder: cuda/random.h). All pointers are device
/// memory; x, y, dy, dx and the factors on 16 bytes. The order of sums depends on the sizes, and on
/// the clusters of blocks and the shared memory that the kind of GPU has, alone.
namespace kinora::kernels::cuda {

/// Whether the kernels take images of this shape: whole vectors of 16 bytes of channels, groups of
/// at most 256, a batch of at most 32767.
[[nodiscard]] bool group_norm_takes(const GroupNormShape& shape);

/// Bytes of scratch, which may be used again by the next call on the same stream; aligned to 16.
[[nodiscard]] size_t group_norm_forward_workspace_bytes(const GroupNormForward& call);
[[nodiscard]] size_t group_norm_backward_workspace_bytes(const GroupNormBackward& call);

[[nodiscard]] cudaError_t group_norm_forward(const GroupNormForward& call, void* workspace,
                                             cudaStream_t stream);
[[nodiscard]] cudaError_t group_norm_backward(const GroupNormBackward& call, void* workspace,
                                              cudaStream_t stream);

}  // namespace kinora::kernels::cuda
