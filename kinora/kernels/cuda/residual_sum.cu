// out = x + y + bias by columns, see kernels/residual_sum.h. A thread takes two vectors of 8
// elements, loaded before the first is used. Bound by memory.
#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/residual_sum.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;
constexpr int kUnroll = 2;

// Not __restrict__: out may be x or y. A vector is read before it is written, by one thread.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    residual_sum_kernel(const ResidualSum call, bool aligned) {
  const int64_t vectors = ceil_div(call.width, kWidth);  // of a row
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x;
  int64_t first[kUnroll];
  int64_t column[kUnroll];
  int count[kUnroll];
  Packed<T, kWidth> x[kUnroll];
  Packed<T, kWidth> y[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t vector = start + i * kThreads;
    const int64_t row = vector / vectors;
    column[i] = vector % vectors * kWidth;
    count[i] = row < call.rows ? static_cast<int>(min(call.width - column[i], int64_t{kWidth})) : 0;
    first[i] = row * call.width + column[i];
    const bool whole = aligned && count[i] == kWidth;
    x[i] = load_some<T, kWidth>(call.x, first[i], count[i], whole);
    y[i] = call.y == nullptr ? Packed<T, kWidth>{}
                             : load_some<T, kWidth>(call.y, first[i], count[i], whole);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (count[i] == 0) {
      continue;
    }
    float sum[kWidth];
    float more[kWidth];
    float bias[kWidth];
    unpack<T, kWidth>(x[i], sum);
    unpack<T, kWidth>(y[i], more);
    load_floats<T, kWidth>(call.bias, column[i], count[i], aligned, bias);
#pragma unroll
    for (int c = 0; c < kWidth; ++c) {
      sum[c] += more[c] + bias[c];
    }
    store_floats<T, kWidth>(call.out, first[i], count[i], aligned, sum);
  }
}

}  // namespace

cudaError_t residual_sum(const ResidualSum& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  const bool aligned = call.width % kWidth == 0 && is_aligned_to<16>(call.x) &&
                       is_aligned_to<16>(call.y) && is_aligned_to<16>(call.bias) &&
                       is_aligned_to<16>(call.out);
  const int64_t vectors = call.rows * ceil_div(call.width, kWidth);
  constexpr int64_t kBlock = int64_t{kThreads} * kUnroll;
  return with_type(call.type, [&](auto example) {
    residual_sum_kernel<decltype(example)>
        <<<static_cast<unsigned>(ceil_div(vectors, kBlock)), kThreads, 0, stream>>>(call, aligned);
    return cudaGetLastError();
  });
}

}  // namespace kinora::kernels::cuda
