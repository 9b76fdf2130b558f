#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kinora/core/dtype.h"

/// Loads, stores and conversions that the element-wise kernels share. Device code only.
namespace kinora::kernels::cuda {

/// N elements of T as they lie in memory. Only 16-byte multiples are one or two vector accesses.
template <typename T, int N>
struct Packed {
  static constexpr int kWords = static_cast<int>(N * sizeof(T) / 4);
  static_assert(kWords % 4 == 0);
  uint32_t word[kWords];
};

/// `data` + first must be aligned to 16 bytes.
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> load_packed(const void* data, int64_t first) {
  Packed<T, N> result;
  const auto* source = reinterpret_cast<const uint4*>(static_cast<const T*>(data) + first);
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kWords / 4; ++i) {
    const uint4 quad = source[i];
    result.word[4 * i] = quad.x;
    result.word[4 * i + 1] = quad.y;
    result.word[4 * i + 2] = quad.z;
    result.word[4 * i + 3] = quad.w;
  }
  return result;
}

template <typename T>
__device__ __forceinline__ float to_float(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return value;
  }
}

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

template <typename T, int N>
__device__ __forceinline__ void unpack(const Packed<T, N>& packed, float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kWords; ++i) {
    const uint32_t word = packed.word[i];
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      values[2 * i] = __uint_as_float(word << 16);
      values[2 * i + 1] = __uint_as_float(word & 0xffff0000U);
    } else if constexpr (std::is_same_v<T, __half>) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    } else {
      values[i] = __uint_as_float(word);
    }
  }
}

template <typename T, int N>
__device__ __forceinline__ Packed<T, N> pack(const float (&values)[N]) {
  Packed<T, N> packed;
#pragma unroll
  for (int i = 0; i < Packed<T, N>::kWords; ++i) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      packed.word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else if constexpr (std::is_same_v<T, __half>) {
      const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      packed.word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      packed.word[i] = __float_as_uint(values[i]);
    }
  }
  return packed;
}

/// Elements [first, first + count) with count <= N, the rest zero. `whole` (then count == N): an
/// aligned vector.
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> load_some(const void* data, int64_t first, int count,
                                                  bool whole) {
  if (whole) {
    return load_packed<T, N>(data, first);
  }
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  constexpr int kPerWord = 4 / sizeof(T);
  Packed<T, N> result = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) {
      const uint32_t bits = static_cast<const Bits*>(data)[first + i];
      result.word[i / kPerWord] |= bits << (16 * (i % kPerWord));
    }
  }
  return result;
}

/// The same, as floats. (Where several loads should be in flight, load_some needs half the
/// registers.)
template <typename T, int N>
__device__ __forceinline__ void load_floats(const void* data, int64_t first, int count, bool whole,
                                            float (&values)[N]) {
  unpack<T, N>(load_some<T, N>(data, first, count, whole), values);
}

template <typename T, int N>
__device__ __forceinline__ void store_floats(void* data, int64_t first, int count, bool whole,
                                             const float (&values)[N]) {
  if (whole) {
    const Packed<T, N> packed = pack<T, N>(values);
    auto* target = reinterpret_cast<uint4*>(static_cast<T*>(data) + first);
#pragma unroll
    for (int i = 0; i < Packed<T, N>::kWords / 4; ++i) {
      target[i] = make_uint4(packed.word[4 * i], packed.word[4 * i + 1], packed.word[4 * i + 2],
                             packed.word[4 * i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < count) {
        static_cast<T*>(data)[first + i] = from_float<T>(values[i]);
      }
    }
  }
}

/// Four values, scaled, as 8-bit floats in a word, the first in its lowest byte.
__device__ __forceinline__ uint32_t quantise4(float a, float b, float c, float d, float scale,
                                              __nv_fp8_interpretation_t format) {
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2(make_float2(a * scale, b * scale), __NV_SATFINITE, format);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2(make_float2(c * scale, d * scale), __NV_SATFINITE, format);
  return low | (high << 16);
}

/// The larger of a magnitude's bits and |value|'s: as integers, so that NaN is the largest.
__device__ __forceinline__ uint32_t larger_magnitude(uint32_t bits, float value) {
  return max(bits, __float_as_uint(value) & 0x7fffffffU);
}

/// *amax = max(*amax, magnitude) over the threads of a warp: one atomic operation.
__device__ __forceinline__ void record_warp_amax(float* amax, uint32_t magnitude) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    magnitude = max(magnitude, __shfl_xor_sync(0xffffffffU, magnitude, offset));
  }
  // Most warps find a larger one there already; a stale read only costs an atomic operation.
  if (threadIdx.x % 32 == 0 && magnitude > *reinterpret_cast<volatile uint32_t*>(amax)) {
    atomicMax(reinterpret_cast<unsigned int*>(amax), magnitude);
  }
}

template <size_t kBytes>
bool is_aligned_to(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kBytes == 0;  // null is aligned
}

/// body(T{}) with the type's T; an error for what is not a type of activations.
template <typename Body>
cudaError_t with_type(DType type, const Body& body) {
  switch (type) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(__nv_bfloat16{});
    case DType::kF16:
      return body(__half{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace kinora::kernels::cuda
