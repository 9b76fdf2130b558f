#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/weight_codes.h"

/// Launcher of kernels/weight_codes.h (rules of this folder: cuda/random.h).
namespace kinora::kernels::cuda {

/// kernels::dequantise_weight on the device, with the same bits. codes and out must be aligned to
/// 16 bytes, and groups of kNf4 be of kNf4Group, else cudaErrorInvalidValue.
[[nodiscard]] cudaError_t dequantise_weight(const WeightCodes& call, DType type, void* out,
                                            cudaStream_t stream);

}  // namespace kinora::kernels::cuda
