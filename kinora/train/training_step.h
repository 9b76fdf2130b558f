#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/importance.h"
#include "kinora/diffusion/objective.h"

namespace kinora::train {

/// What a training step computes by, besides the data.
struct StepSettings {
  uint64_t seed = 0;
  double label_dropout = 0.0;
  int64_t null_class = 0;
  int64_t global_batch = 1;
  at::Device device = at::kCPU;
};

/// Forward and backward of the micro-batches of one optimizer step.
class TrainingStep {
 public:
  /// All are borrowed. `importance` may be null: then times are drawn as the objective says.
  TrainingStep(diffusion::Denoiser& denoiser, const diffusion::Objective& objective,
               diffusion::LossSecondMoment* importance, const StepSettings& settings);

  /// Adds the gradients of loss_scale times the mean loss over the global batch to those that the
  /// parameters have. loss_scale: fp32, no dims, on the device. Returns the mean loss, fp32, no
  /// dims, on the device.
  [[nodiscard]] at::Tensor forward_backward(const std::vector<data::Batch>& micro_batches,
                                            int64_t step, const at::Tensor& loss_scale);

  /// The same predictions without gradients, to look at what modules return.
  void forward_only(const std::vector<data::Batch>& micro_batches, int64_t step);

  /// Gives importance sampling the losses of the last forward_backward; waits for the device.
  /// Nothing to do without.
  void update_importance();

 private:
  struct MicroLoss {
    diffusion::Loss loss;
    at::Tensor t;
  };
  [[nodiscard]] MicroLoss micro_loss(const data::Batch& batch, int64_t step);

  diffusion::Denoiser& denoiser_;
  const diffusion::Objective& objective_;
  diffusion::LossSecondMoment* importance_;
  StepSettings settings_;
  std::vector<at::Tensor> seen_t_;
  std::vector<at::Tensor> seen_loss_;
};

}  // namespace kinora::train
