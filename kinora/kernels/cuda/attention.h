#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/attention.h"

/// Our own attention kernels (rules of this folder: cuda/random.h). Results are the same bits each
/// time: no atomic additions. NaN propagates. Tensors must be aligned to 16 bytes, and strides be
/// multiples of 8 elements; else cudaErrorInvalidValue.
namespace kinora::kernels::cuda {

/// Whether own kernels exist for this shape on the current GPU: head_dim 32, 40, 64, 72, 80, 96,
/// 128 or 160, bf16 (compute capability 8.0 or newer) or fp16 (7.5), lengths of at least 1, scale >
/// 0; with a BlockMask 64, 72 or 128, and capability 9.0. For others the launchers return
/// cudaErrorNotSupported.
[[nodiscard]] bool attention_supported(const AttentionShape& shape);

/// A sample without keys gives out 0 and lse -inf.
[[nodiscard]] cudaError_t attention_forward(const AttentionForward& call, cudaStream_t stream);

/// Bytes of attention_backward's scratch.
[[nodiscard]] size_t attention_backward_workspace_bytes(const AttentionShape& shape);

/// @param workspace  aligned to 16 bytes; may be null where no bytes are needed. Its contents at
///                   entry do not matter.
[[nodiscard]] cudaError_t attention_backward(const AttentionBackward& call, void* workspace,
                                             cudaStream_t stream);

}  // namespace kinora::kernels::cuda
