#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::diffusion {

/// What a prediction is conditioned on. Every tensor is optional (undefined = not given); the first
/// dim of each is B.
struct Conditions {
  at::Tensor labels{};  ///< int64 [B]; the null class is the denoiser's num_classes
  /// One row of what Denoiser::prepare made of these conditions: stands in for t and them.
  at::Tensor prepared{};
};

/// The seam between models and everything that trains or samples them.
class Denoiser {
 public:
  Denoiser() = default;
  Denoiser(const Denoiser&) = delete;
  Denoiser& operator=(const Denoiser&) = delete;
  virtual ~Denoiser() = default;

  /// x_t: float32 [B, C, H, W] (images) or [B, C, T, H, W] (video). t: float32 [B] in the
  /// schedule's unit: 0..999 for discrete schedules, [0, 1] for flows. Returns float32 of x_t's
  /// shape, with twice the channels where the model learns the variance.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x_t, const at::Tensor& t,
                                           const Conditions& conditions) = 0;

  /// Once before the passes of an optimizer step, when weights have changed.
  virtual void begin_step() {}

  /// Before each pass (forward and backward of a micro-batch) of a step; may be recorded with it.
  /// overwrite: gradients hold nothing yet, and may be overwritten instead of added to.
  virtual void begin_pass(bool /*overwrite*/) {}

  /// What depends on time and conditions alone, for all `times` at once: row s of the result, as
  /// Conditions::prepared, lets forward skip that work at times[s]. times: float32 [S] on the
  /// conditions' device. Undefined where the denoiser has no use for it.
  [[nodiscard]] virtual at::Tensor prepare(const at::Tensor& times, const Conditions& conditions);
};

}  // namespace kinora::diffusion
