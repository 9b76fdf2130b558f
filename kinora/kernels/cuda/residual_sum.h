#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/residual_sum.h"

/// Launcher of kernels/residual_sum.h (rules of this folder: cuda/random.h). All pointers are
/// device memory. Arrays on 16 bytes whose width is a multiple of 8 elements are fastest; any
/// alignment works.
namespace kinora::kernels::cuda {

[[nodiscard]] cudaError_t residual_sum(const ResidualSum& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
