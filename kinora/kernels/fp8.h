#pragma once

#include <cmath>
#include <cstdint>

#include "kinora/core/dtype.h"
#include "kinora/core/host_device.h"
#include "kinora/core/rounding.h"

/// 8-bit floats (Micikevicius et al. 2022, "FP8 formats for deep learning"): quantised copies of
/// matrices, and the scales that bring values into the formats' range.
///
/// This header has the arguments and the CPU reference; kernels/cuda/fp8.h the launchers.
namespace kinora::kernels {

[[nodiscard]] inline bool is_fp8(DType type) {
  return type == DType::kF8E4M3 || type == DType::kF8E5M2;
}

/// Elements from one row of a matrix' transposed copy to the next: products read whole pieces of 16
/// bytes.
[[nodiscard]] KINORA_HOST_DEVICE constexpr int64_t transposed_pitch(int64_t rows) {
  return round_up(rows, 16);
}

/// The largest finite numbers of the formats.
inline constexpr float kLargestE4M3 = 448.0F;
inline constexpr float kLargestE5M2 = 57344.0F;

/// An 8-bit copy of values: quantised = round(clamp(value * *scale)) in `type`, to nearest, ties to
/// even; what is beyond the largest number (infinity, too) becomes that number, NaN stays NaN. Used
/// where `type` is kF8E4M3 or kF8E5M2.
struct Fp8Output {
  DType type = DType::kF8E4M3;
  void* data = nullptr;  ///< [rows, width]; null: not written
  /// [width, transposed_pitch(rows)], zeros behind the rows; null: not written.
  void* transposed = nullptr;
  const float* scale = nullptr;  ///< in the device's memory; null: 1
  /// In and out: max(*amax, largest |value|), where NaN counts as the largest; null: not wanted.
  float* amax = nullptr;
};

/// Whether anything of it is wanted.
[[nodiscard]] KINORA_HOST_DEVICE inline bool is_wanted(const Fp8Output& output) {
  return output.data != nullptr || output.transposed != nullptr || output.amax != nullptr;
}

/// An 8-bit copy of a matrix; with nothing but out.amax its largest magnitude, from which current
/// scaling takes its scale.
struct Quantise {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of in: kF32, kBF16, kF16
  const void* in = nullptr;   ///< [rows, width]
  Fp8Output out;
  float* column_sums = nullptr;  ///< fp32 [width], added to; null: not wanted
  int64_t row_stride = 0;        ///< of in, in elements; 0: rows are adjacent
};
void quantise(const Quantise& call);

/// out[c, r] = in[r, c]: bytes, in [rows, width], out [width, transposed_pitch(rows)], zeros behind
/// the rows.
void transpose_bytes(const void* in, int64_t rows, int64_t width, void* out);

/// The next scales of `count` tensors, by delayed scaling (Micikevicius et al. 2022; the recipe of
/// the same name in the documentation of NVIDIA's Transformer Engine): the largest number of the
/// format over the largest magnitude of the last `window` steps. With window 0: current scaling, of
/// this step's magnitude alone. All pointers are in the device's memory.
///
/// A magnitude that is not finite does not enter the history (a 0 does) and leaves the scale as it
/// is, and so does a history of zeros.
struct ScaleUpdate {
  int64_t count = 0;
  float* amax = nullptr;     ///< [count], in; zero afterwards
  float* history = nullptr;  ///< [count, window], in and out, the newest first
  int64_t window = 0;
  const float* largest = nullptr;  ///< [count]: kLargestE4M3 or kLargestE5M2
  int margin = 0;                  ///< the scale is 2^margin smaller
  float* scale = nullptr;          ///< [count], in and out
  float* inverse_scale = nullptr;  ///< [count], out: 1 / scale
};
void update_scales(const ScaleUpdate& call);

/// The scale for values up to `amax`; `scale` where there is none.
[[nodiscard]] KINORA_HOST_DEVICE inline float next_scale(float largest, float amax, int margin,
                                                         float scale) {
  constexpr float kLargestFloat = 3.402823466e38F;
  if (!(amax > 0.0F && amax <= kLargestFloat)) {
    return scale;
  }
  const float next = largest / ldexpf(amax, margin);
  return next <= kLargestFloat ? next : kLargestFloat;
}

/// An 8-bit copy with a scale of its own for each block of 128 elements of a row, or of 128 x 128
/// elements (of a weight), as cuBLASLt reads them (its documentation, "Scaling factors layouts"). A
/// block's factor is amax / largest: what its 8-bit values have to be multiplied by; 1 where amax
/// is 0; a block with a value that is not finite gets NaN. Rows and width must be multiples of 16.
///
/// With B = ceil(width / 128) blocks in a row:
///   1 x 128:    factors [B, rows]: that of row r, block b at b * rows + r (..SCALE_VEC128_32F)
///   128 x 128:  factors [ceil(rows / 128), round_up(B, 4)], the padding is 0
///               (..SCALE_BLK128x128_32F)
/// The transposed copy is quantised as the transposed matrix [width, rows] would be.
struct BlockQuantise {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of in: kF32, kBF16, kF16
  const void* in = nullptr;   ///< [rows, width]
  bool is_square = false;     ///< blocks of 128 x 128
  DType out_type = DType::kF8E4M3;
  void* data = nullptr;                 ///< [rows, width]; null: not written, nor are its factors
  float* factors = nullptr;             ///< block_factors(rows, width, is_square) of them
  void* transposed = nullptr;           ///< [width, rows]; null: not written, nor are its factors
  float* transposed_factors = nullptr;  ///< block_factors(width, rows, is_square) of them
};
void block_quantise(const BlockQuantise& call);

inline constexpr int64_t kScaleBlock = 128;

/// What a block's values are multiplied by, and what its 8-bit values have to be multiplied by.
struct BlockScale {
  float scale;
  float factor;
};

[[nodiscard]] KINORA_HOST_DEVICE inline BlockScale block_scale(float largest, float amax) {
  constexpr float kLargestFloat = 3.402823466e38F;
  if (amax == 0.0F) {
    return {1.0F, 1.0F};
  }
  if (!(amax <= kLargestFloat)) {
    return {amax - amax, amax - amax};  // NaN
  }
  const float scale = next_scale(largest, amax, 0, 1.0F);
  return {scale, 1.0F / scale};
}

/// Number of factors of a matrix [rows, width].
[[nodiscard]] KINORA_HOST_DEVICE inline int64_t block_factors(int64_t rows, int64_t width,
                                                              bool is_square) {
  const int64_t blocks = ceil_div(width, kScaleBlock);
  return is_square ? ceil_div(rows, kScaleBlock) * round_up(blocks, 4) : rows * blocks;
}

}  // namespace kinora::kernels
