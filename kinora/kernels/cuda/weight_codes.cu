// Weights of codes (weight_codes.h).
//
// Bound by memory: a thread loads the codes of sixteen or, of kNf4, thirty-two neighbouring
// elements in one access of 16 bytes and stores them in vectors, too. Of kNf4 they lie in one
// group; so they do of the others where the group is a multiple of sixteen. The sixteen numbers of
// kNf4 lie in as many banks of shared memory, so that lookups do not wait for each other.
//
// A value is one product, rounded as on the CPU.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/weight_codes.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHalf = 16;  // elements that are stored at once
constexpr int64_t kMaxBlocks = 65536;

__constant__ float kNumbers[16] = {
    kNf4Numbers[0],  kNf4Numbers[1],  kNf4Numbers[2],  kNf4Numbers[3],
    kNf4Numbers[4],  kNf4Numbers[5],  kNf4Numbers[6],  kNf4Numbers[7],
    kNf4Numbers[8],  kNf4Numbers[9],  kNf4Numbers[10], kNf4Numbers[11],
    kNf4Numbers[12], kNf4Numbers[13], kNf4Numbers[14], kNf4Numbers[15]};

template <WeightFormat kFormat>
constexpr int kChunk = kFormat == WeightFormat::kNf4 ? 2 * kHalf : kHalf;

/// The numbers of the sixteen codes that begin with byte `first` of `bytes`.
template <WeightFormat kFormat>
__device__ __forceinline__ void numbers_of(const uint32_t (&words)[4], int half,
                                           const float* numbers, float (&values)[kHalf]) {
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    if constexpr (kFormat == WeightFormat::kNf4) {
      const uint32_t byte = words[2 * half + i / 8] >> (i / 2 % 4 * 8);
      values[i] = numbers[(i % 2 == 0 ? byte >> 4 : byte) & 0xfU];
    } else if constexpr (kFormat == WeightFormat::kInt8) {
      values[i] = static_cast<float>(static_cast<int8_t>(words[i / 4] >> (i % 4 * 8)));
    } else if (i % 2 == 0) {
      const auto two = static_cast<__nv_fp8x2_storage_t>(words[i / 4] >> (i % 4 * 8));
      // Every E4M3 number is an fp16 number, too.
      const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
      values[i] = pair.x;
      values[i + 1] = pair.y;
    }
  }
}

template <typename T, WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(const WeightCodes call, void* out, int64_t width, int64_t gap,
                      bool in_groups) {
  __shared__ float numbers[16];
  if constexpr (kFormat == WeightFormat::kNf4) {
    if (threadIdx.x < 16) {
      numbers[threadIdx.x] = kNumbers[threadIdx.x];
    }
    __syncthreads();
  }
  constexpr int64_t kElements = kChunk<kFormat>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kElements;
  for (int64_t chunk = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
       chunk < call.count; chunk += stride) {
    const uint4 bytes =
        *reinterpret_cast<const uint4*>(call.codes + chunk * kCodeAlignment / kElements);
    const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    const int64_t group = chunk / call.group;
    const float scale = call.scales[group];
#pragma unroll
    for (int half = 0; half < kElements / kHalf; ++half) {
      const int64_t first = chunk + half * kHalf;
      const auto left = static_cast<int>(min(call.count - first, int64_t{kHalf}));
      if (left <= 0) {
        break;
      }
      float values[kHalf];
      numbers_of<kFormat>(words, half, numbers, values);
      if (in_groups) {
#pragma unroll
        for (float& value : values) {
          value = __fmul_rn(value, scale);
        }
      } else {
        int64_t next = (group + 1) * call.group;
        int64_t own = group;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          if (first + i == next) {
            ++own;
            next += call.group;
          }
          values[i] = i < left ? __fmul_rn(values[i], call.scales[own]) : 0.0F;
        }
      }
      const int64_t place = gap == 0 ? first : first + first / width * gap;
      store_floats<T, kHalf>(out, place, left, left == kHalf, values);
    }
  }
}

template <typename T, WeightFormat kFormat>
cudaError_t launch(const WeightCodes& call, void* out, int64_t width, int64_t gap,
                   cudaStream_t stream) {
  constexpr int64_t kElements = int64_t{kThreads} * kChunk<kFormat>;
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(call.count, kElements), kMaxBlocks));
  dequantise_kernel<T, kFormat>
      <<<blocks, kThreads, 0, stream>>>(call, out, width, gap, call.group % kChunk<kFormat> == 0);
  return cudaGetLastError();
}

}  // namespace

cudaError_t dequantise_weight(const WeightCodes& call, DType type, void* out, int64_t width,
                              int64_t gap, cudaStream_t stream) {
  if (call.count == 0) {
    return cudaSuccess;
  }
  if (!is_aligned_to<kCodeAlignment>(call.codes) || !is_aligned_to<16>(out) || call.group < 1 ||
      (call.format == WeightFormat::kNf4 && call.group != kNf4Group) ||
      (gap != 0 && (gap % kHalf != 0 || width < kHalf || width % kHalf != 0))) {
    return cudaErrorInvalidValue;
  }
  return with_type(type, [&](auto element) {
    using T = decltype(element);
    switch (call.format) {
      case WeightFormat::kInt8:
        return launch<T, WeightFormat::kInt8>(call, out, width, gap, stream);
      case WeightFormat::kFp8:
        return launch<T, WeightFormat::kFp8>(call, out, width, gap, stream);
      case WeightFormat::kNf4:
        return launch<T, WeightFormat::kNf4>(call, out, width, gap, stream);
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace kinora::kernels::cuda
