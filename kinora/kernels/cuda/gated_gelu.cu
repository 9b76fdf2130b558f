// g = u GELU(v) and its backward, see kernels/gated_gelu.h. A thread takes a vector of 8 elements
// of u and of v in a row; a block 256 of them, of as many rows as they fill. Bound by memory.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/gated_gelu.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;

/// The share of a standard normal distribution below v, and its density there.
__device__ __forceinline__ float share_below(float v) {
  return 0.5F * (1.0F + erff(v * 0.70710678F));
}
__device__ __forceinline__ float density(float v) {
  return 0.39894228F * __expf(-0.5F * v * v);
}

/// A thread's vector: its row and first column.
struct Vector {
  int64_t row;
  int64_t column;
  int count;  // elements, 0 where there is none

  __device__ Vector(int64_t rows, int64_t width) {
    const int64_t vectors = ceil_div(width, kWidth);  // of a row
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    row = i / vectors;
    column = i % vectors * kWidth;
    count = row < rows ? static_cast<int>(min(width - column, int64_t{kWidth})) : 0;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const GatedGeluForward call, bool aligned) {
  const Vector at(call.rows, call.width);
  if (at.count == 0) {
    return;
  }
  const int64_t first = 2 * at.row * call.width + at.column;
  float u[kWidth];
  float v[kWidth];
  load_floats<T, kWidth>(call.uv, first, at.count, aligned, u);
  load_floats<T, kWidth>(call.uv, first + call.width, at.count, aligned, v);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    u[i] *= v[i] * share_below(v[i]);
  }
  store_floats<T, kWidth>(call.g, at.row * call.width + at.column, at.count, aligned, u);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const GatedGeluBackward call, bool aligned) {
  const Vector at(call.rows, call.width);
  if (at.count == 0) {
    return;
  }
  const int64_t first = 2 * at.row * call.width + at.column;
  float u[kWidth];
  float v[kWidth];
  float dg[kWidth];
  load_floats<T, kWidth>(call.uv, first, at.count, aligned, u);
  load_floats<T, kWidth>(call.uv, first + call.width, at.count, aligned, v);
  load_floats<T, kWidth>(call.dg, at.row * call.width + at.column, at.count, aligned, dg);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float share = share_below(v[i]);
    const float slope = share + v[i] * density(v[i]);
    const float dv = dg[i] * u[i] * slope;
    u[i] = dg[i] * v[i] * share;
    v[i] = dv;
  }
  store_floats<T, kWidth>(call.duv, first, at.count, aligned, u);
  store_floats<T, kWidth>(call.duv, first + call.width, at.count, aligned, v);
}

unsigned blocks_of(int64_t rows, int64_t width) {
  return static_cast<unsigned>(ceil_div(rows * ceil_div(width, kWidth), kThreads));
}

}  // namespace

cudaError_t gated_gelu_forward(const GatedGeluForward& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  const bool aligned =
      call.width % kWidth == 0 && is_aligned_to<16>(call.uv) && is_aligned_to<16>(call.g);
  return with_type(call.type, [&](auto example) {
    forward_kernel<decltype(example)>
        <<<blocks_of(call.rows, call.width), kThreads, 0, stream>>>(call, aligned);
    return cudaGetLastError();
  });
}

cudaError_t gated_gelu_backward(const GatedGeluBackward& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  const bool aligned = call.width % kWidth == 0 && is_aligned_to<16>(call.uv) &&
                       is_aligned_to<16>(call.dg) && is_aligned_to<16>(call.duv);
  return with_type(call.type, [&](auto example) {
    backward_kernel<decltype(example)>
        <<<blocks_of(call.rows, call.width), kThreads, 0, stream>>>(call, aligned);
    return cudaGetLastError();
  });
}

}  // namespace kinora::kernels::cuda
