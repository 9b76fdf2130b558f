#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kinora/kernels/cuda/async_copy.cuh"

/// The instructions that the attention kernels are made of, with the layouts of their fragments
/// (PTX ISA, "Matrix fragments for mma.m16n8k16"). A warp's lane is 4 g + t, with g in [0, 8) and t
/// in [0, 4):
///   A (16 x 16): a0 = (g, 2t..2t+1), a1 = (g + 8, 2t..), a2 = (g, 2t + 8..), a3 = (g + 8, 2t
///   + 8..) B (16 x 8):  b0 = (2t..2t+1, g), b1 = (2t + 8.., g) C (16 x 8):  c0, c1 = (g,
///   2t..2t+1), c2, c3 = (g + 8, 2t..)
/// m16n8k8 has a0, a1, b0 of the above. So the C of two neighbouring n8 tiles, packed in pairs, is
/// an A of a product that sums over these 16 columns.
///   ldmatrix: lane 8 i + r gives the address of row r (16 bytes) of the 8 x 8 matrix i; register i
/// then has (row g, columns 2t..2t+1) of matrix i; with .trans (rows 2t..2t+1, column g).
/// Shared memory is addressed by bytes in the shared window throughout.
namespace kinora::kernels::cuda::attention {

struct Bf16 {};
struct F16 {};

/// The dynamic shared memory, and the only one of a kernel. Aligned as swizzles want it.
__device__ __forceinline__ uint32_t shared_base() {
  extern __shared__ __align__(1024) uint8_t attention_memory[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(attention_memory));
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ float2 load_shared_float2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared_uint4(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ float4 load_shared_float4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

/// One store of 16 bytes, which the compiler may not part.
__device__ __forceinline__ void store_global(void* address, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

/// The 8 x 8 matrix of which a lane has (row g, columns 2t..2t+1), transposed.
__device__ __forceinline__ uint32_t transpose_tile(uint32_t word) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}

/// c += a b, 16 x 8 x 8.
template <typename T>
__device__ __forceinline__ void multiply_add8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0);

template <>
__device__ __forceinline__ void multiply_add8<F16>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                   uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

template <>
__device__ __forceinline__ void multiply_add8<Bf16>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                    uint32_t b0) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
#endif
}

/// c += a b, 16 x 8 x 16.
template <typename T>
__device__ __forceinline__ void multiply_add16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1);

template <>
__device__ __forceinline__ void multiply_add16<F16>(float (&c)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  multiply_add8<F16>(c, a[0], a[1], b0);
  multiply_add8<F16>(c, a[2], a[3], b1);
#endif
}

template <>
__device__ __forceinline__ void multiply_add16<Bf16>(float (&c)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Two values, `low` in the low half, to nearest.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<Bf16>(float low, float high) {
  uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
#endif
  return result;
}

template <>
__device__ __forceinline__ uint32_t pack<F16>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t both);

template <>
__device__ __forceinline__ float2 unpack<Bf16>(uint32_t both) {
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000U));
}

template <>
__device__ __forceinline__ float2 unpack<F16>(uint32_t both) {
  return __half22float2(*reinterpret_cast<const __half2*>(&both));
}

/// 2^x; 0 at -inf. Two units of the last place, subnormal results are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

template <typename Value>
__device__ __forceinline__ Value shuffle_xor(Value value, int mask) {
  return __shfl_xor_sync(0xffffffffU, value, mask);
}

__device__ __forceinline__ bool any_lane(bool condition) {
  return __any_sync(0xffffffffU, condition) != 0;
}

/// Transposes 4 x 4 words across the four lanes of a quad: r[i] of lane t and r[t] of lane i change
/// places. Between fragments, where a lane has a word of each of four 16-byte chunks, and memory,
/// where it has one whole chunk.
__device__ __forceinline__ void transpose_quad(uint32_t (&r)[4], int t) {
  const bool upper = (t & 2) != 0;
  const uint32_t first = shuffle_xor(upper ? r[0] : r[2], 2);
  const uint32_t second = shuffle_xor(upper ? r[1] : r[3], 2);
  r[0] = upper ? first : r[0];
  r[1] = upper ? second : r[1];
  r[2] = upper ? r[2] : first;
  r[3] = upper ? r[3] : second;
  const bool odd = (t & 1) != 0;
  const uint32_t low = shuffle_xor(odd ? r[0] : r[1], 1);
  const uint32_t high = shuffle_xor(odd ? r[2] : r[3], 1);
  r[0] = odd ? low : r[0];
  r[1] = odd ? r[1] : low;
  r[2] = odd ? high : r[2];
  r[3] = odd ? r[3] : high;
}

}  // namespace kinora::kernels::cuda::attention
