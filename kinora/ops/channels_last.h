#pragma once

#include <ATen/core/Tensor.h>

/// The layout that kernels take images [B, C, H, W] and clips [B, C, T, H, W] in: the channels of a
/// place side by side. For ops' own sources.
namespace kinora::ops {

inline at::MemoryFormat channels_last(const at::Tensor& x) {
  return x.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

inline bool is_channels_last(const at::Tensor& x) {
  return (x.dim() == 4 || x.dim() == 5) && x.is_contiguous(channels_last(x));
}

}  // namespace kinora::ops
