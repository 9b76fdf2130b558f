#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/activation.h"

/// Launchers of kernels/activation.h (rules of this folder: cuda/random.h). All pointers are device
/// memory. Arrays of 16-byte alignment whose width is a multiple of 8 elements are fastest;
/// anything else works.
namespace kinora::kernels::cuda {

/// kernels::activation_forward on the device.
[[nodiscard]] cudaError_t activation_forward(const ActivationForward& call, cudaStream_t stream);

/// kernels::gated_activation on the device.
[[nodiscard]] cudaError_t gated_activation(const GatedActivation& call, cudaStream_t stream);

/// Bytes of activation_backward's scratch; 0 where bias_grad is not wanted.
[[nodiscard]] size_t activation_backward_workspace_bytes(int64_t rows, int64_t width,
                                                         bool bias_grad);

/// kernels::activation_backward on the device. The order of additions depends on the sizes alone.
/// `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t activation_backward(const ActivationBackward& call, void* workspace,
                                              cudaStream_t stream);

}  // namespace kinora::kernels::cuda
