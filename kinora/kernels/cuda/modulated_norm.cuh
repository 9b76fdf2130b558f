#pragma once

#include <algorithm>

#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/fp8_tile.cuh"
#include "kinora/kernels/cuda/shared_memory.cuh"
#include "kinora/kernels/modulated_norm.h"

/// What the forward and backward kernels of modulated_norm share. Device code only.
namespace kinora::kernels::cuda {

constexpr int kChunk = 8;  ///< columns that a thread takes at a time: 16 bytes of a 16-bit type
constexpr unsigned kFullWarp = 0xffffffffU;

/// call.rows_of_vectors, of which none has more rows than there are.
template <typename Call>
VectorRows rows_of_vectors(const Call& call) {
  return {std::min(call.rows_of_vectors.even, call.rows),
          std::min(call.rows_of_vectors.odd, call.rows)};
}

/// Whether load_vector4 may read with 16-byte loads.
inline bool is_aligned_view(const VectorView& view) {
  return is_aligned_to<16>(view.data) && is_aligned_to<16>(view.table) && view.stride % 4 == 0;
}

__device__ __forceinline__ float vector_element(const VectorView& view, int64_t vector,
                                                int64_t column) {
  const float value = view.data == nullptr ? 0.0F : view.data[vector * view.stride + column];
  return view.table == nullptr ? value : value + view.table[column];
}

/// Elements [column, column + 4); aligned: is_aligned_view and column % 4 == 0.
__device__ __forceinline__ float4 load_vector4(const VectorView& view, int64_t vector,
                                               int64_t column, bool aligned) {
  if (!aligned) {
    return make_float4(
        vector_element(view, vector, column), vector_element(view, vector, column + 1),
        vector_element(view, vector, column + 2), vector_element(view, vector, column + 3));
  }
  float4 value = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (view.data != nullptr) {
    value = *reinterpret_cast<const float4*>(view.data + vector * view.stride + column);
  }
  if (view.table != nullptr) {
    const float4 table = *reinterpret_cast<const float4*>(view.table + column);
    value = make_float4(value.x + table.x, value.y + table.y, value.z + table.z, value.w + table.w);
  }
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, offset);
  }
  return value;
}

/// The block's sum in every thread; scratch: one float a warp.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  __syncthreads();  // scratch may still be read
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0.0F;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
    sum += scratch[warp];
  }
  return sum;
}

}  // namespace kinora::kernels::cuda
