#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kinora/kernels/fp8.h"

/// Launchers of kernels/fp8.h (rules of this folder: cuda/random.h). All pointers are device
/// memory. Whatever writes a transposed copy needs a width that is a multiple of 16 and pointers
/// aligned to 16 bytes, as the matrix products that read it do: else cudaErrorInvalidValue. The
/// rest takes any size and alignment (16 bytes is fastest).
namespace kinora::kernels::cuda {

/// Bytes of quantise's scratch where column sums are wanted.
[[nodiscard]] size_t quantise_workspace_bytes(int64_t rows, int64_t width);

/// kernels::quantise on the device. Column sums go with a transposed copy alone; they are added up
/// in an order that depends on the sizes. `workspace` is read where they are wanted, and may be
/// used again by the next call on the same stream. Rows that are not adjacent are multiples of 8
/// elements, and so are their distances.
[[nodiscard]] cudaError_t quantise(const Quantise& call, void* workspace, cudaStream_t stream);

/// kernels::transpose_bytes on the device.
[[nodiscard]] cudaError_t transpose_bytes(const void* in, int64_t rows, int64_t width, void* out,
                                          cudaStream_t stream);

/// kernels::update_scales on the device: one launch for all tensors.
[[nodiscard]] cudaError_t update_scales(const ScaleUpdate& call, cudaStream_t stream);

/// kernels::block_quantise on the device; width and alignment as for transposed copies, and rows in
/// multiples of 16.
[[nodiscard]] cudaError_t block_quantise(const BlockQuantise& call, cudaStream_t stream);

}  // namespace kinora::kernels::cuda
