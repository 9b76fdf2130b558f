#pragma once

#include <cstdint>
#include <cstring>

#include "kinora/core/dtype.h"

/// fp32 to the 16-bit types, round to nearest, ties to even.
namespace kinora::kernels {

/// The nearest IEEE half's bits: beyond 65504 rounds to infinity, NaN stays a quiet NaN. Without
/// branches, so that loops over it become vector code.
[[nodiscard]] inline uint16_t float_to_f16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;

  // Normal halves: exponent bias 127 -> 15, 13 mantissa bits less; a carry into the exponent is
  // right.
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;

  // Subnormal halves are multiples of 2^-24, and so is the last bit of floats in [0.5, 1): the
  // addition rounds.
  float tiny;
  std::memcpy(&tiny, &magnitude, sizeof(tiny));
  tiny += 0.5F;
  uint32_t subnormal;
  std::memcpy(&subnormal, &tiny, sizeof(subnormal));
  subnormal -= 0x3f000000U;

  const uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
  uint32_t half = magnitude < (113U << 23) ? subnormal : normal;
  half = magnitude >= (143U << 23) ? special : half;  // 65536 and more
  return static_cast<uint16_t>(sign | half);
}

/// out[i] = in[i] rounded, i in [0, count).
/// @param type  kBF16 or kF16.
/// @param out   [count] of `type`.
void cast(const float* in, int64_t count, DType type, void* out);

}  // namespace kinora::kernels
