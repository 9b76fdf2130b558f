#include "kinora/optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"
#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {

AdamW::AdamW(const AdamWConfig& config, const Arena& arena) : config_(config) {
  for (const double beta : {config.beta1, config.beta2}) {
    KINORA_CHECK(beta >= 0.0 && beta < 1.0, kConfig, "[adamw] betas must be in [0, 1), got ", beta);
  }
  KINORA_CHECK(config.eps > 0.0, kConfig, "[adamw] eps must be above 0, got ", config.eps);
  KINORA_CHECK(config.weight_decay >= 0.0, kConfig,
               "[adamw] weight_decay must not be negative, got ", config.weight_decay);
  KINORA_CHECK(config.max_grad_norm >= 0.0, kConfig,
               "[adamw] max_grad_norm must not be negative (0: no clipping), got ",
               config.max_grad_norm);
  KINORA_CHECK(arena.options().train, kConfig, "[adamw] this arena was made for sampling");
  policy_.beta1 = config.beta1;
  policy_.beta2 = config.beta2;
  policy_.max_grad_norm = config.max_grad_norm;
  policy_.dynamic_loss_scale = arena.options().compute_type == at::kHalf;
  kernels::StepControl start;
  start.loss_scale = policy_.dynamic_loss_scale ? kernels::kInitialLossScale : 1.0F;
  control_ = ops::make_step_control(start, arena.options().device);
}

StepResult AdamW::step(Arena& arena, double lr) {
  KINORA_CHECK(std::isfinite(lr) && lr >= 0.0, kConfig,
               "[adamw] the learning rate must be finite and not negative, got ", lr);
  KINORA_CHECK(!arena.is_bound(), kInternal,
               "[adamw] cannot step while an EMA stands in for the weights");
  for (const Bucket& bucket : arena.buckets()) {
    ops::add_sum_squares(bucket.grad, control_);
  }
  ops::prepare_update(control_, policy_);

  kernels::AdamwParameters parameters;
  parameters.lr = lr;
  parameters.beta1 = config_.beta1;
  parameters.beta2 = config_.beta2;
  parameters.eps = config_.eps;
  parameters.weight_decay = config_.weight_decay;
  const std::vector<double>& decays = arena.options().ema_decays;
  parameters.num_emas = static_cast<int>(decays.size());
  std::copy(decays.begin(), decays.end(), parameters.ema_decay);
  for (const Bucket& bucket : arena.buckets()) {
    const bool rounds = !bucket.compute.is_same(bucket.master);
    ops::adamw_update({bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq, bucket.ema,
                       rounds ? bucket.compute : at::Tensor()},
                      parameters, control_);
  }

  const kernels::StepControl done = ops::read_step_control(control_);
  return {done.grad_norm, done.skip != 0, done.loss_scale, done.applied_steps, done.skipped_steps};
}

at::Tensor AdamW::loss_scale() const {
  return ops::loss_scale_of(control_);
}

AdamWState AdamW::state() const {
  const kernels::StepControl control = ops::read_step_control(control_);
  return {control.applied_steps, control.skipped_steps, control.loss_scale, control.good_steps};
}

void AdamW::restore(const AdamWState& state) {
  KINORA_CHECK(state.applied_steps >= 0 && state.skipped_steps >= 0 && state.good_steps >= 0 &&
                   state.good_steps < policy_.growth_interval && std::isfinite(state.loss_scale) &&
                   state.loss_scale > 0.0F,
               kIo,
               "[adamw] a saved state must have counts of 0 or more and a positive loss scale, "
               "got ",
               state.applied_steps, " applied, ", state.skipped_steps, " skipped, ",
               state.good_steps, " good steps, loss scale ", state.loss_scale);
  KINORA_CHECK(policy_.dynamic_loss_scale || state.loss_scale == 1.0F, kIo,
               "[adamw] a saved loss scale of ", state.loss_scale,
               " belongs to an fp16 run, this one is not. Hint: keep train.precision on resume.");
  kernels::StepControl control;
  control.applied_steps = state.applied_steps;
  control.skipped_steps = state.skipped_steps;
  control.loss_scale = state.loss_scale;
  control.good_steps = state.good_steps;
  control_.copy_(ops::make_step_control(control, at::kCPU));
}

}  // namespace kinora::optim
