// Sums of block-scaled E4M3 numbers (fp8_blocks.h).
//
// Bound by memory: a thread has sixteen neighbouring elements of a sum, one load of 16 bytes a
// term, four terms in flight. They lie in one scale's block, which 8 threads share.
//
// Products and sums are rounded one by one (no fused multiply-add), as on the CPU.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/fp8_blocks.h"
#include "kinora/kernels/fp8.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 16;
constexpr int64_t kBlockElements = int64_t{kThreads} * kChunk;
constexpr int64_t kMaxBlocks = 65536;
constexpr int64_t kMaxSums = 65535;  // of a grid's y

static_assert(kScaleBlock % kChunk == 0);

/// total[k] += factor * the E4M3 number in byte k of `bytes`.
__device__ __forceinline__ void add_scaled(const uint4& bytes, float factor,
                                           float (&total)[kChunk]) {
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
  for (int pair = 0; pair < kChunk / 2; ++pair) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(words[pair / 2] >> (pair % 2 * 16));
    // Every E4M3 number is an fp16 number, too.
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    total[2 * pair] = __fadd_rn(total[2 * pair], __fmul_rn(values.x, factor));
    total[2 * pair + 1] = __fadd_rn(total[2 * pair + 1], __fmul_rn(values.y, factor));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) block_sums_kernel(const BlockSums call, bool aligned) {
  const int64_t sum = blockIdx.y;
  const int64_t blocks = call.pitch / kScaleBlock;
  const auto* const data = static_cast<const uint8_t*>(call.data) + sum * call.terms * call.pitch;
  const float* const factors = call.factors + sum * call.terms * blocks;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kBlockElements;
  for (int64_t first = blockIdx.x * kBlockElements + threadIdx.x * int64_t{kChunk};
       first < call.count; first += stride) {
    float total[kChunk] = {};
#pragma unroll 4
    for (int64_t term = 0; term < call.terms; ++term) {
      add_scaled(*reinterpret_cast<const uint4*>(data + term * call.pitch + first),
                 factors[term * blocks + first / kScaleBlock], total);
    }
#pragma unroll
    for (float& value : total) {
      value = __fmul_rn(value, call.scale);
    }
    const auto left = static_cast<int>(min(call.count - first, int64_t{kChunk}));
    store_floats<T, kChunk>(call.out, sum * call.count + first, left, aligned && left == kChunk,
                            total);
  }
}

template <typename T>
cudaError_t launch(const BlockSums& call, cudaStream_t stream) {
  const bool aligned = is_aligned_to<16>(call.out) &&
                       (call.sums == 1 || call.count * static_cast<int64_t>(sizeof(T)) % 16 == 0);
  const int64_t blocks = std::min(ceil_div(call.count, kBlockElements), kMaxBlocks);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(call.sums));
  block_sums_kernel<T><<<grid, kThreads, 0, stream>>>(call, aligned);
  return cudaGetLastError();
}

}  // namespace

cudaError_t block_sums(const BlockSums& call, cudaStream_t stream) {
  if (call.sums == 0 || call.count == 0) {
    return cudaSuccess;
  }
  if (call.sums > kMaxSums || call.pitch % kScaleBlock != 0 || call.pitch < call.count ||
      !is_aligned_to<16>(call.data)) {
    return cudaErrorInvalidValue;
  }
  return with_type(call.type, [&](auto type) { return launch<decltype(type)>(call, stream); });
}

}  // namespace kinora::kernels::cuda
