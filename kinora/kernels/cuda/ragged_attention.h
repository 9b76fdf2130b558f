#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/ragged_attention.h"

/// The launcher of kernels/ragged_attention.h (rules of this folder: cuda/random.h). Pointers are
/// device memory.
namespace kinora::kernels::cuda {

/// Whether there is a kernel on the current GPU: compute capability 8.0 or newer, head_dim 64, bf16
/// or fp16, texts of up to 8,192 tokens.
[[nodiscard]] bool ragged_attention_supported(const RaggedAttention& call);

/// Arrays of 16-bit numbers must be aligned to 16 bytes, and strides be multiples of 8 elements;
/// else cudaErrorInvalidValue. The same bits each time.
[[nodiscard]] cudaError_t ragged_attention(const RaggedAttention& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
