#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/kernels/diffusion_loss.h"

/// Losses of diffusion training by one kernel in each direction instead of some forty. Their
/// composed form, which is the specification and the path of every other device and type, is
/// diffusion/objective.cc's.
namespace kinora::ops {

/// What a loss is made of. n: elements of a sample of x0.
struct DiffusionLossInputs {
  kernels::Target target = kernels::Target::kNoise;
  bool learned_variance = false;
  at::Tensor prediction{};  ///< [B, C, ...], more channels than x0's where the target says so
  at::Tensor noise{};       ///< fp32, as x0
  at::Tensor x0{};          ///< fp32 [B, C, ...]
  at::Tensor weights{};     ///< fp32 [B]
  /// Of a discrete chain, else undefined.
  at::Tensor t{};      ///< fp32 [B]
  at::Tensor table{};  ///< fp32 [timesteps, kernels::kNumDiffusionColumns]
  double bound_scale = 1.0;
};

struct FusedLoss {
  at::Tensor mean;   ///< fp32 scalar: mean of weights * total; differentiable (once) in prediction
  at::Tensor total;  ///< fp32 [B], without gradient, as the following
  at::Tensor mse;    ///< fp32 [B]
  at::Tensor vb;     ///< fp32 [B]; undefined without learned variance
};

/// Whether the kernel takes these: all on one GPU with kernels of our own, of the types and shapes
/// above, and the prediction of fp32, fp16 or bf16.
[[nodiscard]] bool has_fused_loss(const DiffusionLossInputs& inputs);

/// The loss; backward is one launch that reads the prediction again and scales by the incoming
/// gradient (of the loss' scale) where it lies. Asks has_fused_loss() of the caller, and shapes
/// that fit.
[[nodiscard]] FusedLoss fused_loss(const DiffusionLossInputs& inputs);

}  // namespace kinora::ops
