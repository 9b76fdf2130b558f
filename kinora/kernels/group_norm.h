#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// Group normalisation (Wu and He 2018) of images whose channels lie side by side (channels_last),
/// [batch, places, channels], contiguous:
///
///   z = x + t,  t[b][c] = channel_bias[c] + offset[b][c]
///   u = (z - mean) * rstd * weight + bias,  y = f(u), f = silu or nothing
///
/// with mean and rstd = 1 / sqrt(variance + epsilon) of z over all places of a group, which is
/// channels / groups neighbouring channels. This header has the arguments and the CPU reference;
/// kernels/cuda/group_norm.h the launchers.
namespace kinora::kernels {

/// Numbers by channel, kF32, kBF16 or kF16.
struct ChannelValues {
  const void* data = nullptr;
  DType type = DType::kF32;
};

/// The same to write; null: not wanted.
struct ChannelGradient {
  void* data = nullptr;
  DType type = DType::kF32;
};

struct GroupNormShape {
  int64_t batch = 0;
  int64_t places = 0;
  int64_t channels = 0;
  int64_t groups = 1;         ///< divides channels
  DType type = DType::kBF16;  ///< of x, y, dy, dx: kF32, kBF16, kF16

  [[nodiscard]] int64_t group_channels() const { return channels / groups; }
};

/// What backward needs of forward. Of either both arrays are null, or none.
struct GroupNormStatistics {
  /// [4, batch, channels]: scale = rstd * weight and shift, with which u = x * scale + shift;
  /// mean - t; and by how much the mean of the channel's z exceeds the group's.
  float* factors = nullptr;
  float* rstd = nullptr;  ///< [batch, groups]
};

struct GroupNormForward {
  GroupNormShape shape = {};
  double epsilon = 1e-5;
  bool silu = false;
  const void* x = nullptr;
  ChannelValues weight = {};            ///< [channels]
  ChannelValues bias = {};              ///< [channels]
  ChannelValues channel_bias = {};      ///< [channels]; null: zeros
  ChannelValues offset = {};            ///< [batch, channels]; null: zeros
  void* y = nullptr;                    ///< not x
  GroupNormStatistics statistics = {};  ///< null: not wanted
};

struct GroupNormBackward {
  GroupNormShape shape = {};
  bool silu = false;
  const void* dy = nullptr;
  const void* x = nullptr;
  GroupNormStatistics statistics = {};  ///< of forward
  void* dx = nullptr;                   ///< neither dy nor x; null: not wanted
  ChannelGradient dweight = {};         ///< [channels]
  ChannelGradient dbias = {};           ///< [channels]
  ChannelGradient dchannel_bias = {};   ///< [channels]
  ChannelGradient doffset = {};         ///< [batch, channels]
};

/// The CPU reference: plain loops, in double.
void group_norm_forward(const GroupNormForward& call);
void group_norm_backward(const GroupNormBackward& call);

}  // namespace kinora::kernels
