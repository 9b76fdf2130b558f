#pragma once

#include <cstdint>

#include "kinora/kernels/fp8.h"

/// Gate, residual, LayerNorm and modulation in one pass, the seam between two branches of an
/// adaLN-Zero block (Peebles and Xie 2023, section 3.2), forward and backward:
///
///   x_out = x + gate * branch
///   h     = (x_out - mean(x_out)) * rstd(x_out) * (1 + scale) + shift
///
/// over rows [rows, width], where rstd is of the deviation; or, without `centres`, the same with a
/// mean of 0: RMSNorm (Zhang and Sennrich 2019). Consecutive rows share their
/// vectors shift, scale and gate (the tokens of a sample, or of a frame). Arithmetic is fp32; the
/// rounding of x_out to its type comes after h was made of the unrounded one.
///
/// This header has the arguments and the CPU reference; kernels/cuda/modulated_norm.h the
/// launchers.
namespace kinora::kernels {

/// fp32 vectors of `width`, one for each group of rows: element c of vector v is
/// data[v * stride + c] + (table ? table[c] : 0). `table` is adaLN-single's (Chen et al. 2024,
/// "PixArt-alpha", section 2.3).
struct VectorView {
  const float* data = nullptr;  ///< null: zeros (scale and shift of a plain LayerNorm)
  int64_t stride = 0;           ///< 0: one vector for all rows
  const float* table = nullptr;
};

/// Which rows share a vector: in turn `even` of them, then `odd`, such as the two parts of each
/// sample.
struct VectorRows {
  int64_t even = 1;
  int64_t odd = 1;

  [[nodiscard]] KINORA_HOST_DEVICE int64_t begin(int64_t vector) const {
    return vector / 2 * (even + odd) + vector % 2 * even;
  }
  [[nodiscard]] KINORA_HOST_DEVICE int64_t of(int64_t row) const {
    const int64_t pair = row / (even + odd);
    return 2 * pair + (row - pair * (even + odd) >= even ? 1 : 0);
  }
  /// The vectors of that many rows.
  [[nodiscard]] KINORA_HOST_DEVICE int64_t count(int64_t rows) const {
    return rows == 0 ? 0 : of(rows - 1) + 1;
  }
};

/// The last vector's rows may be fewer than others'. Where neither h nor h_fp8 nor mean nor
/// rstd is wanted it is the residual alone: scale and shift are not read.
struct ResidualNormForward {
  int64_t rows = 0;
  int64_t width = 0;
  VectorRows rows_of_vectors = {};
  float epsilon = 1e-6F;
  bool has_norm = true;         ///< false: h is x_out; scale and shift are not read
  bool centres = true;          ///< false: the mean is 0
  DType type = DType::kBF16;    ///< of x, branch, x_out: kF32, kBF16, kF16
  DType h_type = DType::kBF16;  ///< of h: `type` or kF32

  const void* x = nullptr;
  const void* branch = nullptr;  ///< null: x_out = x, and gate is not read
  VectorView gate;
  VectorView scale;
  VectorView shift;

  void* x_out = nullptr;  ///< may be x; null: not written
  void* h = nullptr;      ///< null: not written
  int64_t h_stride = 0;   ///< elements between rows of h; 0: width
  Fp8Output h_fp8 = {};   ///< a quantised copy of h
  float* mean = nullptr;  ///< [rows]; null: not written, as it must be without a norm
  float* rstd = nullptr;  ///< likewise
};

/// The gradients of ResidualNormForward. With xhat = (x_out - mean) * rstd and
/// g = dh * (1 + scale):
///
///   dx      = dx_out + rstd * (g - mean_c(g) - xhat * mean_c(g * xhat)),
///             without mean_c(g) where forward did not centre
///   dbranch = gate * dx
///   dgate   = sum over the vector's rows of branch * dx
///   dscale  = sum of dh * xhat;  dshift = sum of dh;  dbranch_sum = sum of dbranch
///
/// 8-bit copies (here and in forward) with `transposed` need `data`, too, and 16-byte alignment and
/// a width that is a multiple of 16, as the matrix products that read them do.
struct ResidualNormBackward {
  int64_t rows = 0;
  int64_t width = 0;
  VectorRows rows_of_vectors = {};
  DType type = DType::kBF16;     ///< of x_out, branch, dx_out, dx, dbranch
  DType dh_type = DType::kBF16;  ///< `type` or kF32
  bool centres = true;           ///< as forward's

  const void* dh = nullptr;  ///< null: there was no norm: x_out, mean, rstd, scale are not read,
                             ///< dshift and dscale must be null
  const void* dx_out = nullptr;  ///< null: zero
  const void* x_out = nullptr;
  const float* mean = nullptr;   ///< [rows]
  const float* rstd = nullptr;   ///< [rows]
  const void* branch = nullptr;  ///< read for dgate alone, which is null without
  VectorView gate;
  VectorView scale;

  void* dx = nullptr;          ///< may be dx_out; null: not written (without a norm it is dx_out)
  void* dbranch = nullptr;     ///< null: not written
  int64_t dbranch_stride = 0;  ///< elements between its rows; 0: width
  Fp8Output dbranch_fp8 = {};  ///< a quantised copy of dbranch
  /// fp32, vector v at [v * dvector_stride]; overwritten; null: not wanted.
  float* dshift = nullptr;
  float* dscale = nullptr;
  float* dgate = nullptr;
  int64_t dvector_stride = 0;
  float* dbranch_sum = nullptr;  ///< fp32 [vectors, width], overwritten; null: not wanted
};

/// Whether a gradient of the branch or of its gate is wanted; else `gate` is not read.
[[nodiscard]] KINORA_HOST_DEVICE inline bool has_branch(const ResidualNormBackward& call) {
  return call.dbranch != nullptr || is_wanted(call.dbranch_fp8) || call.dgate != nullptr ||
         call.dbranch_sum != nullptr;
}

/// The CPU reference: plain loops.
void residual_norm_forward(const ResidualNormForward& call);
void residual_norm_backward(const ResidualNormBackward& call);

}  // namespace kinora::kernels
