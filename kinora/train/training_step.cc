#include "kinora/train/training_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinora/data/normalise.h"
#include "kinora/ops/random.h"

namespace kinora::train {

TrainingStep::TrainingStep(diffusion::Denoiser& denoiser, const diffusion::Objective& objective,
                           diffusion::LossSecondMoment* importance, const StepSettings& settings)
    : denoiser_(denoiser), objective_(objective), importance_(importance), settings_(settings) {}

TrainingStep::MicroLoss TrainingStep::micro_loss(const data::Batch& batch, int64_t step) {
  const auto philox_step = static_cast<uint32_t>(step);
  const at::Tensor x0 = data::to_float(batch.images, settings_.device);
  at::Tensor labels = batch.labels.to(settings_.device, /*non_blocking=*/true);
  if (settings_.label_dropout > 0.0) {
    const at::Tensor draw =
        ops::random_uniform(labels.sizes(), batch.sample_index, settings_.seed, philox_step,
                            RandomPurpose::kLabelDropout, settings_.device);
    labels = at::where(draw < settings_.label_dropout, at::full_like(labels, settings_.null_class),
                       labels);
  }
  const diffusion::NoisedBatch noised = diffusion::noise(
      objective_, x0,
      {.seed = settings_.seed, .step = philox_step, .sample_index = batch.sample_index},
      importance_);
  const at::Tensor prediction = denoiser_.forward(noised.x_t, noised.t, {.labels = labels});
  return {.loss = diffusion::loss(objective_, prediction, noised, x0), .t = noised.t};
}

at::Tensor TrainingStep::forward_backward(const std::vector<data::Batch>& micro_batches,
                                          int64_t step, const at::Tensor& loss_scale) {
  seen_t_.clear();
  seen_loss_.clear();
  at::Tensor total = at::zeros({}, at::device(settings_.device).dtype(at::kFloat));
  for (const data::Batch& batch : micro_batches) {
    const double share =
        static_cast<double>(batch.images.size(0)) / static_cast<double>(settings_.global_batch);
    const MicroLoss micro = micro_loss(batch, step);
    torch::autograd::backward({micro.loss.mean * (loss_scale * share)}, {});
    total = total + micro.loss.mean.detach() * share;
    if (importance_ != nullptr) {
      seen_t_.push_back(micro.t);
      seen_loss_.push_back(micro.loss.per_sample);
    }
  }
  return total;
}

void TrainingStep::forward_only(const std::vector<data::Batch>& micro_batches, int64_t step) {
  at::NoGradGuard no_grad;
  for (const data::Batch& batch : micro_batches) {
    (void)micro_loss(batch, step);
  }
}

void TrainingStep::update_importance() {
  if (importance_ == nullptr) {
    return;
  }
  const at::Tensor t = at::cat(seen_t_).to(at::kCPU, at::kLong).contiguous();
  const at::Tensor loss = at::cat(seen_loss_).to(at::kCPU, at::kDouble).contiguous();
  importance_->update({t.const_data_ptr<int64_t>(), static_cast<size_t>(t.numel())},
                      {loss.const_data_ptr<double>(), static_cast<size_t>(loss.numel())});
}

}  // namespace kinora::train
