#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/fp8_blocks.h"

/// Launcher of kernels/fp8_blocks.h (rules of this folder: cuda/random.h).
namespace kinora::kernels::cuda {

/// kernels::block_sums on the device, with the same bits. data must be aligned to 16 bytes, else
/// cudaErrorInvalidValue; out may lie anywhere (16 bytes, and rows of such, are fastest).
[[nodiscard]] cudaError_t block_sums(const BlockSums& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
