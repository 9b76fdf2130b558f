#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/kernels/gated_gelu.h"
#include "kinora/kernels/residual_sum.h"

/// The launchers of a U-Net's kernels on torch's current stream, for unet_parts.cc only.
/// no_unet_launch.cc in CPU-only builds.
namespace kinora::ops::cuda {

void gated_gelu_forward(const kernels::GatedGeluForward& call);
void gated_gelu_backward(const kernels::GatedGeluBackward& call);
void residual_sum(const kernels::ResidualSum& call);
/// fp32 [C], the sums of in [R, C], contiguous, over its rows.
[[nodiscard]] at::Tensor sums_of_columns(const at::Tensor& in);

}  // namespace kinora::ops::cuda
