#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/kernels/group_norm.h"
#include "kinora/ops/group_norm.h"

/// The launchers of kernels/cuda/group_norm.h on tensors and torch's current stream, for
/// group_norm.cc only. no_group_norm_launch.cc in CPU-only builds. x, y, dy, dx: [B, C, spatial...]
/// with channels side by side, on 16 bytes. Vectors: contiguous, fp32, bf16 or fp16.
namespace kinora::ops::cuda {

/// Whether there is a kernel for x.
[[nodiscard]] bool group_norm_takes(const at::Tensor& x, int64_t groups);

/// What backward needs of forward; undefined tensors where it is not wanted.
struct GroupNormStatistics {
  at::Tensor factors;  ///< fp32 [4, B, C]
  at::Tensor rstd;     ///< fp32 [B, groups]
};

/// @param channel_bias, offset  may be undefined
void group_norm_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const GroupNormOptions& options, const at::Tensor& channel_bias,
                        const at::Tensor& offset, const at::Tensor& y,
                        const GroupNormStatistics& statistics);

/// The tensors to write; undefined: not wanted.
struct GroupNormGradients {
  at::Tensor x, weight, bias, channel_bias, offset;
};

void group_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                         const GroupNormStatistics& statistics, bool silu,
                         const GroupNormGradients& gradients);

}  // namespace kinora::ops::cuda
