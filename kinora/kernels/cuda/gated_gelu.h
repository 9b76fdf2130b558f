#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/gated_gelu.h"

/// Launchers of kernels/gated_gelu.h (rules of this folder: cuda/random.h). All pointers are device
/// memory. Arrays on 16 bytes whose width is a multiple of 8 elements are fastest; any alignment
/// works.
namespace kinora::kernels::cuda {

[[nodiscard]] cudaError_t gated_gelu_forward(const GatedGeluForward& call, cudaStream_t stream);
[[nodiscard]] cudaError_t gated_gelu_backward(const GatedGeluBackward& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
