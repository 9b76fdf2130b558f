#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// What happens to queries and keys between their projection and attention, in one pass:
///
///   x_hat = x / sqrt(mean over the head of x^2 + epsilon)     (QK-norm: Henry et al. 2020, with
///   n     = x_hat * weight                                     the RMS of Zhang and Sennrich 2019)
///   y     = n, its pairs of elements turned by the angles of the row's position
///                                                             (rotary embedding: Su et al. 2021)
///
/// With biases the norm is LayerNorm (Ba et al. 2016): the head's mean is taken off x, and
/// n = x_hat * weight + bias. Either half may be left out. A row holds q [heads, head_dim], then k
/// [heads, head_dim]; what lies behind them up to the row's stride (v of a packed qkv) is neither
/// read nor written, unless `copies_values` says so.
///
/// This header has the arguments and the CPU reference; kernels/cuda/qk_norm_rotary.h the
/// launchers.
namespace kinora::kernels {

/// Which elements of a head are a pair. With D = head_dim, pair i is
enum class RotaryPairs : uint8_t {
  kInterleaved,  ///< (2 i, 2 i + 1)
  kHalfSplit,    ///< (i, i + D / 2)
};

struct QkNormRotary {
  int64_t rows = 0;  ///< on a GPU fewer than 2^31, as num_positions
  int64_t heads = 0;
  int64_t head_dim = 0;       ///< even, at most 256
  DType type = DType::kBF16;  ///< of all arrays of rows: kF32, kBF16, kF16

  bool normalise = true;  ///< else the following six are not used
  float epsilon = 1e-6F;
  DType weight_type = DType::kF32;  ///< of the following four: kF32, kBF16, kF16
  const void* q_weight = nullptr;   ///< [head_dim]; null: ones
  const void* k_weight = nullptr;   ///< [head_dim]; null: ones
  const void* q_bias = nullptr;     ///< [head_dim]; null, both: RMSNorm
  const void* k_bias = nullptr;     ///< as q_bias

  RotaryPairs pairs = RotaryPairs::kInterleaved;
  const float* cosine = nullptr;  ///< [num_positions, head_dim / 2]; null: nothing is turned
  const float* sine = nullptr;    ///< as cosine
  int64_t num_positions = 1;
  const int64_t* position = nullptr;  ///< [rows], in [0, num_positions); null: row % num_positions

  bool copies_values = false;  ///< v [heads, head_dim] of each row, too, as it is
  /// Rows of a sample, where samples lie apart on the far side of attention (out, dout): the rows
  /// of a stream among those of all. 0: rows are equally far apart.
  int64_t rows_per_sample = 0;
};

struct QkNormRotaryForward {
  QkNormRotary rule;
  const void* in = nullptr;  ///< rows of q, k
  int64_t in_stride = 0;     ///< in elements, at least 2 heads * head_dim
  void* out = nullptr;       ///< may be in (with its stride)
  int64_t out_stride = 0;
  int64_t out_sample_stride = 0;  ///< between the first rows of samples, with rows_per_sample
};

/// din = gradient of in, and of the weights where wanted (only with `normalise`).
struct QkNormRotaryBackward {
  QkNormRotary rule;
  const void* dout = nullptr;
  int64_t dout_stride = 0;
  const void* in = nullptr;  ///< what forward read; not read without `normalise`
  int64_t in_stride = 0;
  void* din = nullptr;  ///< may be dout or in (with its stride)
  int64_t din_stride = 0;
  float* dq_weight = nullptr;      ///< [head_dim], in and out; null: neither this nor dk_weight
  float* dk_weight = nullptr;      ///< [head_dim], in and out
  float* dq_bias = nullptr;        ///< with biases and dq_weight: as that
  float* dk_bias = nullptr;        ///< as dq_bias
  int64_t dout_sample_stride = 0;  ///< as out_sample_stride
};

/// The CPU reference: plain loops, in double.
void qk_norm_rotary_forward(const QkNormRotaryForward& call);
void qk_norm_rotary_backward(const QkNormRotaryBackward& call);

}  // namespace kinora::kernels
