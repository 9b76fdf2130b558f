#pragma once

#include <cuda_runtime_api.h>

#include "kinora/kernels/weight_codes.h"

/// Launcher of kernels/weight_codes.h (rules of this folder: cuda/random.h).
namespace kinora::kernels::cuda {

/// kernels::dequantise_weight on the device, with the same bits. Between rows of `width` elements
/// of out `gap` elements are left as they are. codes and out must be aligned to 16 bytes, groups of
/// kNf4 be of kNf4Group, and width and gap multiples of 16 unless gap is 0, else
/// cudaErrorInvalidValue.
[[nodiscard]] cudaError_t dequantise_weight(const WeightCodes& call, DType type, void* out,
                                            int64_t width, int64_t gap, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
