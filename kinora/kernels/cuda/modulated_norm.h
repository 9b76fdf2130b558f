#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/modulated_norm.h"

/// Launchers of kernels/modulated_norm.h (rules of this folder: cuda/random.h). All pointers are
/// device memory. Arrays of 16-byte alignment whose width is a multiple of 8 elements (backward:
/// and at most 4,096) are fastest; anything else works. cudaErrorInvalidValue where a condition
/// that the arguments' comments state is broken.
namespace kinora::kernels::cuda {

/// kernels::residual_norm_forward on the device.
[[nodiscard]] cudaError_t residual_norm_forward(const ResidualNormForward& call,
                                                cudaStream_t stream);

/// Bytes of residual_norm_backward's scratch.
[[nodiscard]] size_t residual_norm_backward_workspace_bytes(int64_t rows, int64_t width);

/// kernels::residual_norm_backward on the device. The order of additions depends on the shapes and
/// types, on which arrays are wanted, and on the shared memory of the kind of GPU: the same bits
/// each time. `workspace` may be used again by the next call on
/// the same stream.
[[nodiscard]] cudaError_t residual_norm_backward(const ResidualNormBackward& call, void* workspace,
                                                 cudaStream_t stream);

}  // namespace kinora::kernels::cuda
