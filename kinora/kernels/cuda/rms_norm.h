#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/rms_norm.h"

/// Launchers of kernels/rms_norm.h (rules of this folder: cuda/random.h). All pointers are device
/// memory. Arrays of 16-byte alignment whose width and strides are multiples of 8, the width at
/// most 8,192, are fastest; anything else works.
namespace kinora::kernels::cuda {

/// kernels::rms_norm_forward on the device.
[[nodiscard]] cudaError_t rms_norm_forward(const RmsNormForward& call, cudaStream_t stream);

/// Bytes of rms_norm_backward's scratch.
[[nodiscard]] size_t rms_norm_backward_workspace_bytes(int64_t rows, int64_t width, bool dweight);

/// kernels::rms_norm_backward on the device. The order of additions depends on the sizes alone.
/// `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t rms_norm_backward(const RmsNormBackward& call, void* workspace,
                                            cudaStream_t stream);

}  // namespace kinora::kernels::cuda
