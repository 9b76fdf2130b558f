#pragma once

#include <algorithm>
#include <cstdint>

#include "kinora/core/dtype.h"

/// Softmax attention over strided heads, forward and backward:
///   S = scale Q K^T,  P = softmax(S),  O = P V,  lse = log sum exp S
/// The CPU reference; the launchers are in kernels/cuda/attention.h and cudnn_attention.h.
namespace kinora::kernels {

/// A tensor [batch, length, heads, head_dim] with elements at
/// data[b * batch_stride + n * row_stride + h * head_stride + d]: packed projections, transposed
/// video tokens and contiguous heads alike.
struct HeadsView {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

/// Which blocks of queries attend to which blocks of keys; those of all heads and samples alike.
/// Blocks are kRows neighbouring rows, of the last as many as there are. All int32, in the memory
/// of the data.
struct BlockMask {
  static constexpr int64_t kRows = 128;
  /// Block i of queries attends to key_blocks[key_offsets[i]] to key_blocks[key_offsets[i + 1] -
  /// 1], in rising order, at least one. [blocks of queries + 1]; null: everything to everything.
  const int32_t* key_offsets = nullptr;
  const int32_t* key_blocks = nullptr;
  /// The same by keys, for backward: block j is attended to by query_blocks[query_offsets[j]] ....
  const int32_t* query_offsets = nullptr;
  const int32_t* query_blocks = nullptr;

  [[nodiscard]] bool any() const { return key_offsets != nullptr; }
  bool operator==(const BlockMask&) const = default;
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t query_length = 0;
  int64_t key_length = 0;
  int64_t head_dim = 0;
  DType type = DType::kBF16;  ///< kBF16 or kF16; the CPU reference also kF32
  float scale = 1.0F;
  /// Ragged keys: batch b has keys [key_offsets[b], key_offsets[b + 1]) of one array of rows
  /// (K's and V's batch_stride is not used), int32 [batch + 1] in the memory of the data. Null:
  /// key_length each. key_length is then the largest length. A sample without keys gives zeros.
  const int32_t* key_offsets = nullptr;
  /// Padded keys: batch b has the first key_lengths[b] of its key_length ones, int32 [batch] in the
  /// memory of the data. The rows behind them are not read, nor are their gradients written. Null:
  /// all of them. Not together with key_offsets.
  const int32_t* key_lengths = nullptr;
  /// With key_lengths each block of queries must attend to a key that counts, and rows behind a
  /// sample's keys, which may be read then, must be finite. Not with key_offsets.
  BlockMask mask = {};

  [[nodiscard]] bool has_equal_keys() const {
    return key_offsets == nullptr && key_lengths == nullptr;
  }
  bool operator==(const AttentionShape&) const = default;
};

struct AttentionForward {
  AttentionShape shape;
  HeadsView q, k, v;  ///< in
  HeadsView out;
  float* lse = nullptr;  ///< [batch, heads, query_length], natural logarithm; null: not wanted
};

struct AttentionBackward {
  AttentionShape shape;
  HeadsView q, k, v, out, dout;  ///< in
  const float* lse = nullptr;    ///< in
  HeadsView dq, dk, dv;          ///< overwritten
};

/// Whether to time a way to compute attention that wants `bytes` of workspace where another wants
/// `least`. Ways that want many times as much keep all scores, or sums for each block of keys: with
/// 4,608 rows of 24 heads of 128 a plan of cuDNN 972 MiB and our kernel for such heads 596, where
/// cuDNN's best wants 54, and on an H100 they take 1.53 and 4.4 ms in place of 1.20.
[[nodiscard]] constexpr bool is_worth_trying(int64_t bytes, int64_t least) {
  constexpr int64_t kTimes = 4;
  constexpr int64_t kLittle = int64_t{64} << 20;
  return bytes <= std::max(kTimes * least, kLittle);
}

/// The CPU reference: plain loops, sums in double.
void attention_forward(const AttentionForward& call);
void attention_backward(const AttentionBackward& call);

}  // namespace kinora::kernels
