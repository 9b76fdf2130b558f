#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kinora/kernels/attention.h"

namespace kinora::kernels::cuda::attention {

/// What the copy engine needs to fetch boxes of 16 elements of head_dim x `rows` rows of one head
/// (coordinates: element, row, head, sample), with the swizzle of 32 bytes. Elements behind
/// head_dim and rows behind `length` arrive as zeros.
/// @param length  rows of a sample
[[nodiscard]] cudaError_t make_tensor_map(const HeadsView& view, const AttentionShape& shape,
                                          int64_t length, int rows, CUtensorMap* map);

}  // namespace kinora::kernels::cuda::attention
