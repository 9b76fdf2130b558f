#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/cuda/attention_plan.h"

/// The kernels for Hopper, with the products of a warpgroup; attention.cu chooses between them and
/// the others. They take what the others take (16-byte aligned heads), on capability 9.0, and are
/// only there where the build has code for 90a (KINORA_HAS_SM90A).
namespace kinora::kernels::cuda::attention {

/// head_dim 64 and 72, more than 64 queries (shorter sequences are the others' field), no ragged
/// keys.
[[nodiscard]] bool wgmma_forward_supported(const AttentionShape& shape, const Gpu& gpu);

[[nodiscard]] cudaError_t launch_wgmma_forward(const AttentionForward& call, const Gpu& gpu,
                                               cudaStream_t stream);

/// Also 129 to 2,048 keys: what a block, or a cluster of them, holds.
[[nodiscard]] bool wgmma_backward_supported(const AttentionShape& shape, const Gpu& gpu);

[[nodiscard]] size_t wgmma_backward_workspace_bytes(const AttentionShape& shape);

/// @param workspace  wgmma_backward_workspace_bytes
[[nodiscard]] cudaError_t launch_wgmma_backward(const AttentionBackward& call, void* workspace,
                                                const Gpu& gpu, cudaStream_t stream);

/// Over a mask of blocks: head_dim 64, 72 and 128, no offsets of keys.
[[nodiscard]] bool blocks_supported(const AttentionShape& shape, const Gpu& gpu);

[[nodiscard]] cudaError_t launch_blocks_forward(const AttentionForward& call, const Gpu& gpu,
                                                cudaStream_t stream);

/// @param workspace  wgmma_backward_workspace_bytes
[[nodiscard]] cudaError_t launch_blocks_backward(const AttentionBackward& call, void* workspace,
                                                 cudaStream_t stream);

}  // namespace kinora::kernels::cuda::attention
