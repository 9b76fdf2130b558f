#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kinora/kernels/column_sums.h"

/// Launchers of kernels/column_sums.h (rules of this folder: cuda/random.h). All pointers are
/// device memory. Rows that start on 16 bytes are fastest; any alignment works.
namespace kinora::kernels::cuda {

/// Bytes of column_sums' scratch.
[[nodiscard]] size_t column_sums_workspace_bytes(int64_t rows, int64_t width);

/// kernels::column_sums on the device, added up in fp32 in an order that depends on the sizes
/// alone. `workspace` may be used again by the next call on the same stream.
[[nodiscard]] cudaError_t column_sums(const ColumnSums& call, void* workspace, cudaStream_t stream);

/// out[c] += sum over i of partial[i * width + c], i in [0, count): the second half of a sum whose
/// first half another kernel has made.
[[nodiscard]] cudaError_t add_partial_sums(const float* partial, int64_t count, int64_t width,
                                           float* out, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
