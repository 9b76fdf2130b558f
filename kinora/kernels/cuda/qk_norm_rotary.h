#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/qk_norm_rotary.h"

/// Launchers of kernels/qk_norm_rotary.h (rules of this folder: cuda/random.h). All pointers are
/// device memory. Arrays aligned to four elements, with strides that are multiples of four and a
/// head_dim that is one of eight, are fastest; anything else works. cudaErrorInvalidValue for a
/// head_dim that is odd or above 256.
namespace kinora::kernels::cuda {

/// kernels::qk_norm_rotary_forward on the device.
[[nodiscard]] cudaError_t qk_norm_rotary_forward(const QkNormRotaryForward& call,
                                                 cudaStream_t stream);

/// Bytes of qk_norm_rotary_backward's scratch; 0 where gradients of weights are not wanted.
[[nodiscard]] size_t qk_norm_rotary_backward_workspace_bytes(int64_t rows, int64_t head_dim,
                                                             bool dweight);

/// kernels::qk_norm_rotary_backward on the device. The order of additions depends on the sizes
/// alone. `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t qk_norm_rotary_backward(const QkNormRotaryBackward& call, void* workspace,
                                                  cudaStream_t stream);

}  // namespace kinora::kernels::cuda
