#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/patches.h"

/// Launchers of kernels/patches.h (rules of this folder: cuda/random.h). All pointers are device
/// memory. Tokens of 16-byte alignment are fastest; any works. Error cudaErrorInvalidValue where
/// the patch does not divide height and width, and for samples of 2^31 elements or more.
namespace kinora::kernels::cuda {

/// kernels::patchify on the device.
[[nodiscard]] cudaError_t patchify(const Patches& patches, const float* image, void* tokens,
                                   cudaStream_t stream);

/// kernels::unpatchify on the device.
[[nodiscard]] cudaError_t unpatchify(const Patches& patches, const void* tokens, float* image,
                                     cudaStream_t stream);

}  // namespace kinora::kernels::cuda
