#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Group normalisation with what comes before and after it in a U-Net. On a GPU and channels_last
/// by our own kernels, else composed of ATen's calls.
namespace kinora::ops {

struct GroupNormOptions {
  int64_t groups = 32;
  double epsilon = 1e-5;
  bool silu = false;
};

/// f((z - mean) / sqrt(variance + epsilon) * weight + bias) of z = x + channel_bias + offset, f =
/// silu or nothing, with mean and variance over all places of a group of neighbouring channels.
/// channel_bias (of the convolution before) and offset (the projected time) cost no pass over x.
/// Statistics and arithmetic are fp32 at least. Differentiable in all tensors. kShape.
/// @param x             [B, C, spatial...]
/// @param weight, bias  [C]
/// @param channel_bias  [C] or undefined
/// @param offset        [B, C] or undefined
/// @return              x's shape, type and memory layout
[[nodiscard]] at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& bias, const GroupNormOptions& options,
                                    const at::Tensor& channel_bias = {},
                                    const at::Tensor& offset = {});

}  // namespace kinora::ops
