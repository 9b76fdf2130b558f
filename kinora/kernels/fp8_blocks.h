#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// What block-scaled 8-bit copies (fp8.h, BlockQuantise) stand for, added up.
///
/// This header has the arguments and the CPU reference; kernels/cuda/fp8_blocks.h the launcher.
namespace kinora::kernels {

/// out[s, i] = scale * (value(s, 0, i) + value(s, 1, i) + ...), added in that order in fp32, where
/// value(s, t, i) is E4M3 number data[s, t, i] times factors[s, t, i / 128]. With one term: the
/// copies' values themselves. A factor of NaN gives NaN.
struct BlockSums {
  int64_t sums = 0;            ///< at most 65,535
  int64_t terms = 0;           ///< of a sum
  int64_t count = 0;           ///< elements of a sum
  int64_t pitch = 0;           ///< elements from a term to the next: a multiple of 128, >= count
  const void* data = nullptr;  ///< E4M3 [sums, terms, pitch]
  const float* factors = nullptr;  ///< [sums, terms, pitch / 128]
  float scale = 1.0F;
  DType type = DType::kF32;  ///< of out: kF32, kBF16, kF16; rounded once
  void* out = nullptr;       ///< [sums, count]
};
void block_sums(const BlockSums& call);

}  // namespace kinora::kernels
