#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// Of images and clips whose channels lie side by side (channels_last), [batch, places, channels],
/// contiguous: what GroupNorm is made of, a norm over the channels of each place, places that come
/// again, and phases that become places.
namespace kinora::kernels {

/// out[0][b][c] = sum over places p of in[b][p][c], out[1][b][c] that of the squares.
struct ChannelMoments {
  int64_t batch = 0;
  int64_t places = 0;
  int64_t channels = 0;
  DType type = DType::kBF16;  ///< of in: kF32, kBF16, kF16
  const void* in = nullptr;
  double* out = nullptr;  ///< [2, batch, channels]
};

/// The CPU reference.
void channel_moments(const ChannelMoments& call);

/// Places as frames, rows and columns, and how often the first and the last of each come again
/// before and behind them. All may be doubled before, and some of these left out.
struct ChannelEdges {
  int64_t sizes[3] = {};  ///< of `in`; all 0: nothing is repeated
  int64_t before[3] = {};
  int64_t after[3] = {};
  int doublings[3] = {};        ///< each comes 2^doublings times
  int64_t left_out[3][2] = {};  ///< of these, at the beginning and at the end

  [[nodiscard]] bool is_empty() const { return sizes[0] == 0; }
  /// Along dim d, without edges.
  [[nodiscard]] int64_t inner(int d) const {
    return (sizes[d] << doublings[d]) - left_out[d][0] - left_out[d][1];
  }
  /// Of the result, along dim d.
  [[nodiscard]] int64_t size(int d) const { return before[d] + inner(d) + after[d]; }
  [[nodiscard]] int64_t out_places() const { return size(0) * size(1) * size(2); }
};

/// out[b][q][c] = in[b][p][c], p the place that q repeats.
struct ChannelRepeat {
  int64_t batch = 0;
  int64_t channels = 0;
  DType type = DType::kBF16;  ///< of in and out: kF32, kBF16, kF16
  const void* in = nullptr;
  void* out = nullptr;
  ChannelEdges edges = {};  ///< not empty
};

/// The CPU reference.
void channel_repeat(const ChannelRepeat& call);

/// A doubled clip of which each place was made as one of the phases of a smaller clip's:
///
///   out[b][(times t + s - left_out, 2 i + y, 2 j + x)][c] =
///       in[b][(t, i + y, j + x)][(4 s + 2 y + x) channels + c] + bias[c]
///
/// for the frames t, rows i and columns j of [frames, rows, columns], s < times, y and x 0 or 1.
struct ChannelPhases {
  int64_t batch = 0;
  int64_t channels = 0;  ///< of out
  int64_t frames = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t times = 1;           ///< what a frame becomes
  int64_t left_out = 0;        ///< of the first frame; less than `times`
  DType type = DType::kBF16;   ///< of all: kF32, kBF16, kF16
  const void* in = nullptr;    ///< [batch, frames, rows + 1, columns + 1, 4 times channels]
  const void* bias = nullptr;  ///< null: zeros
  void* out = nullptr;         ///< [batch, times frames - left_out, 2 rows, 2 columns, channels]

  [[nodiscard]] int64_t out_frames() const { return times * frames - left_out; }
};

/// The CPU reference.
void channel_phases(const ChannelPhases& call);

/// out[b][q][c] = f(in[b][p][c] * scale[b][c] + shift[b][c]), f(x) = x / (1 + exp(-x)) if `silu`,
/// else x. p: q, or with edges the place that it repeats. out may be in, without edges.
struct ChannelAffine {
  int64_t batch = 0;
  int64_t places = 0;
  int64_t channels = 0;
  DType type = DType::kBF16;  ///< of in and out
  const void* in = nullptr;
  const float* scale = nullptr;  ///< [batch, channels], as shift
  const float* shift = nullptr;
  bool silu = false;
  void* out = nullptr;
  ChannelEdges edges = {};
};

/// The CPU reference.
void channel_affine(const ChannelAffine& call);

/// What GroupNorm (Wu and He 2018) multiplies by and adds, made of the sums of its groups: with
/// mean = sums[0][b][g] / elements and variance = max(sums[1][b][g] / elements - mean^2, 0),
///
///   scale[b][c] = weight[c] / sqrt(variance + epsilon)
///   shift[b][c] = bias[c] - mean * scale[b][c]
///
/// for the channels c of group g, channels / groups in a row.
struct GroupAffine {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t groups = 1;
  int64_t elements = 1;  ///< of a group
  double epsilon = 0.0;
  DType type = DType::kF32;  ///< of weight and bias: kF32, kBF16, kF16
  const void* weight = nullptr;
  const void* bias = nullptr;
  const double* sums = nullptr;  ///< [2, batch, groups]
  float* scale = nullptr;        ///< [batch, channels], as shift
  float* shift = nullptr;
};

/// The CPU reference.
void group_affine(const GroupAffine& call);

/// RMSNorm (Zhang and Sennrich 2019) over the channels of a place, written by its length:
///
///   out[b][p][c] = f(in[b][p][c] / max(|in[b][p]|, least) * factor * weight[c])
///
/// with f(x) = x / (1 + exp(-x)) if `silu`, else x.
struct ChannelRms {
  int64_t batch = 0;
  int64_t places = 0;
  int64_t channels = 0;
  DType type = DType::kBF16;  ///< of in and out: kF32, kBF16, kF16
  const void* in = nullptr;
  const float* weight = nullptr;  ///< [channels]
  float factor = 1.0F;
  float least = 0.0F;
  bool silu = false;
  void* out = nullptr;     ///< not `in`
  int64_t out_places = 0;  ///< from one image of `out` to the next; at least `places`
};

/// The CPU reference.
void channel_rms(const ChannelRms& call);

}  // namespace kinora::kernels
