#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/kernels/diffusion_loss.h"
#include "kinora/kernels/patches.h"

/// The launchers of what lies around a denoiser on torch's current stream, for the files of this
/// room only. diffusion_launch.cc in builds with GPU support, no_diffusion_launch.cc in CPU-only
/// ones. Callers ask has_block_kernels() first.
namespace kinora::ops::cuda {

/// @param device_index  of the GPU that the pointers belong to.
void diffusion_loss(const kernels::DiffusionLoss& call, int device_index);

/// Contiguous tensors; the image is fp32, tokens of patches.token_type.
void patchify(const kernels::Patches& patches, const at::Tensor& image, const at::Tensor& tokens);
void unpatchify(const kernels::Patches& patches, const at::Tensor& tokens, const at::Tensor& image);

}  // namespace kinora::ops::cuda
