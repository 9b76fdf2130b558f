// out[c] += sum over r of in[r, c], in two passes. A block takes a strip of columns (32 lanes with
// 16 bytes of a row each) and a range of rows, of which each of its 8 warps takes every eighth; the
// warps' sums are added in order in shared memory and written as one row of partial sums. The
// second kernel adds these rows to the result; a single one is added at once. How many there are
// depends on the sizes alone. Bound by memory: four vectors a thread in flight.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/elements.cuh"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kUnroll = 4;
constexpr int64_t kStrip = 256;          // columns that the plan counts with
constexpr int64_t kTargetBlocks = 2048;  // enough for every GPU, whatever its size
constexpr int64_t kMinRows = kWarps * kUnroll;
constexpr int kFinalWarps = 32;

/// Rows that a block adds up.
int64_t rows_per_block(int64_t rows, int64_t width) {
  const int64_t blocks =
      std::clamp(kTargetBlocks / ceil_div(width, kStrip), int64_t{1}, ceil_div(rows, kMinRows));
  return ceil_div(ceil_div(rows, blocks), kMinRows) * kMinRows;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const T* __restrict__ in, int64_t rows, int64_t width, int64_t row_stride,
                       int64_t rows_per_block, bool aligned, float* __restrict__ partial,
                       bool adds) {
  constexpr int kColumns = 16 / sizeof(T);
  __shared__ float sums[kWarps][32 * kColumns];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * 32 + lane) * kColumns;
  const int count = static_cast<int>(min(max(width - column, int64_t{0}), int64_t{kColumns}));
  const bool whole = aligned && count == kColumns;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block;
  const int64_t end = min(rows, begin + rows_per_block);
  float sum[kColumns] = {};
  for (int64_t row = begin + warp; row < end; row += kWarps * kUnroll) {
    Packed<T, kColumns> packed[kUnroll];
    if (whole && row + (kUnroll - 1) * kWarps < end) {  // no branch between loads
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        packed[i] = load_packed<T, kColumns>(in, (row + i * kWarps) * row_stride + column);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int64_t r = row + i * kWarps;
        packed[i] = load_some<T, kColumns>(in, r * row_stride + column, r < end ? count : 0,
                                           whole && r < end);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float values[kColumns];
      unpack<T, kColumns>(packed[i], values);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sum[c] += values[c];
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    sums[warp][lane * kColumns + c] = sum[c];
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 32 * kColumns;
  if (threadIdx.x < 32 * kColumns && first + threadIdx.x < width) {
    float total = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += sums[w][threadIdx.x];
    }
    float* target = partial + static_cast<int64_t>(blockIdx.y) * width + first + threadIdx.x;
    *target = adds ? *target + total : total;
  }
}

__global__ void __launch_bounds__(32 * kFinalWarps)
    add_partial_sums_kernel(const float* __restrict__ partial, int64_t count, int64_t width,
                            float* __restrict__ out) {
  __shared__ float sums[kFinalWarps][33];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0.0F;
  if (column < width) {
#pragma unroll 4
    for (int64_t i = threadIdx.y; i < count; i += kFinalWarps) {
      sum += partial[i * width + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  for (int half = kFinalWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
    }
  }
  if (threadIdx.y == 0 && column < width) {
    out[column] += sums[0][threadIdx.x];
  }
}

}  // namespace

size_t column_sums_workspace_bytes(int64_t rows, int64_t width) {
  if (rows == 0 || width == 0) {
    return 0;
  }
  return static_cast<size_t>(ceil_div(rows, rows_per_block(rows, width)) * width) * sizeof(float);
}

cudaError_t column_sums(const ColumnSums& call, void* workspace, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  return with_type(call.type, [&](auto example) {
    using T = decltype(example);
    constexpr int64_t kColumns = 32 * 16 / sizeof(T);
    const int64_t per_block = rows_per_block(call.rows, call.width);
    const int64_t num_partial = ceil_div(call.rows, per_block);
    const bool aligned =
        is_aligned_to<16>(call.in) && call.row_stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
    const bool adds = num_partial == 1;  // straight to the result
    auto* partial = adds ? call.out : static_cast<float*>(workspace);
    const dim3 grid(static_cast<unsigned>(ceil_div(call.width, kColumns)),
                    static_cast<unsigned>(num_partial));
    column_sums_kernel<T><<<grid, kThreads, 0, stream>>>(static_cast<const T*>(call.in), call.rows,
                                                         call.width, call.row_stride, per_block,
                                                         aligned, partial, adds);
    const cudaError_t error = cudaGetLastError();
    return error != cudaSuccess || adds
               ? error
               : add_partial_sums(partial, num_partial, call.width, call.out, stream);
  });
}

cudaError_t add_partial_sums(const float* partial, int64_t count, int64_t width, float* out,
                             cudaStream_t stream) {
  add_partial_sums_kernel<<<static_cast<unsigned>(ceil_div(width, 32)), dim3(32, kFinalWarps), 0,
                            stream>>>(partial, count, width, out);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
