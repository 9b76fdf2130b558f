#include "kinora/optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {

namespace {

std::vector<at::Tensor> arrays_of(const Arena& arena) {
  std::vector<at::Tensor> arrays;
  for (const Bucket& bucket : arena.buckets()) {
    arrays.insert(arrays.end(),
                  {bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq, bucket.compute});
    arrays.insert(arrays.end(), bucket.ema.begin(), bucket.ema.end());
  }
  return arrays;
}

bool are_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

/// Elements of a bucket, counted from its slice's begin, whose parameters have one factor.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  double lr_factor = 1.0;
};

/// All of this rank's slice, padding with what is before it.
std::vector<Stretch> stretches_of(const Bucket& bucket) {
  std::vector<Stretch> stretches = {{0, 0, bucket.slots.front().lr_factor}};
  for (const Slot& slot : bucket.slots) {
    const int64_t begin =
        std::clamp<int64_t>(slot.offset - bucket.slice_begin, 0, bucket.slice_numel);
    if (slot.lr_factor != stretches.back().lr_factor) {
      stretches.back().end = begin;
      stretches.push_back({begin, begin, slot.lr_factor});
    }
  }
  stretches.back().end = bucket.slice_numel;
  std::erase_if(stretches, [](const Stretch& stretch) { return stretch.begin == stretch.end; });
  return stretches;
}

ops::OptimizerBucket part_of(const ops::OptimizerBucket& whole, const Stretch& stretch) {
  const auto part = [&stretch](const at::Tensor& array) {
    return array.defined() ? array.narrow(0, stretch.begin, stretch.end - stretch.begin) : array;
  };
  ops::OptimizerBucket result{.master = part(whole.master),
                              .grad = part(whole.grad),
                              .exp_avg = part(whole.exp_avg),
                              .exp_avg_sq = part(whole.exp_avg_sq),
                              .ema = {},
                              .compute = part(whole.compute),
                              .leaves_grad = whole.leaves_grad,
                              .lr_factor = stretch.lr_factor};
  for (const at::Tensor& ema : whole.ema) {
    result.ema.push_back(part(ema));
  }
  return result;
}

void check_raw(const Arena& arena) {
  KINORA_CHECK(!arena.is_bound(), kInternal,
               "[adamw] cannot step while an EMA stands in for the weights");
}

}  // namespace

AdamW::AdamW(const AdamWConfig& config, const Arena& arena, bool own_kernels)
    : own_kernels_(own_kernels) {
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
  exchange_ = ops::make_step_exchange(arena.options().device);
  parameters_.beta1 = config.beta1;
  parameters_.beta2 = config.beta2;
  parameters_.eps = config.eps;
  parameters_.weight_decay = config.weight_decay;
  const std::vector<double>& decays = arena.options().ema_decays;
  parameters_.num_emas = static_cast<int>(decays.size());
  std::copy(decays.begin(), decays.end(), parameters_.ema_decay);
}

AdamW::~AdamW() {
  try {
    (void)ops::read_step_control(control_);
  } catch (...) {
    // The device is gone, and writes nothing any more.
  }
}

StepResult AdamW::step(Arena& arena, double lr) {
  return wait_report(enqueue_step(arena, lr));
}

int64_t AdamW::enqueue_step(Arena& arena, double lr, const at::Tensor& loss) {
  check_raw(arena);
  const int64_t step = begin_step(lr);
  launch_step(arena, loss);
  return step;
}

int64_t AdamW::begin_step(double lr) {
  KINORA_CHECK(std::isfinite(lr) && lr >= 0.0, kConfig,
               "[adamw] the learning rate must be finite and not negative, got ", lr);
  const int64_t step = steps_ + 1;
  if (step > kernels::kStepRing) {  // whose entry this step takes
    (void)ops::wait_report(exchange_, step - kernels::kStepRing, control_.device());
  }
  ops::set_step_lr(exchange_, step, lr);
  steps_ = step;
  return step;
}

void AdamW::prepare(const Arena& arena) {
  std::vector<at::Tensor> arrays = arrays_of(arena);
  if (are_same(arrays_, arrays)) {
    return;
  }
  std::vector<ops::OptimizerBucket> buckets;
  for (const Bucket& bucket : arena.buckets()) {
    const bool rounds = !bucket.compute.is_same(bucket.master);
    // Of divided gradients this is but a slice: who reduces them starts them anew.
    const bool leaves =
        arena.options().sharding.divides() || (leaves_gradients_ && !bucket.fp32_island);
    const ops::OptimizerBucket whole{bucket.master,  bucket.grad,
                                     bucket.exp_avg, bucket.exp_avg_sq,
                                     bucket.ema,     rounds ? bucket.compute : at::Tensor(),
                                     leaves};
    for (const Stretch& stretch : stretches_of(bucket)) {
      buckets.push_back(part_of(whole, stretch));
    }
  }
  table_ = ops::BucketTable(std::move(buckets), own_kernels_);
  arrays_ = std::move(arrays);
}

void AdamW::launch_step(Arena& arena, const at::Tensor& loss) {
  check_raw(arena);
  prepare(arena);
  ops::add_sum_squares(table_, control_);
  if (arena.options().sharding.divides()) {
    const at::Tensor sum = ops::sum_squares_of(control_);
    const at::Tensor over_ranks = sum.to(at::kFloat);  // what groups can add; the norm is fp32 too
    arena.options().sharding.group.all_reduce(over_ranks);
    sum.copy_(over_ranks);
  }
  ops::prepare_update(control_, policy_, exchange_);
  ops::adamw_update(table_, parameters_, control_);
  ops::publish_report(control_, loss, exchange_);
}

StepResult AdamW::wait_report(int64_t step) const {
  KINORA_CHECK(step >= 1 && step <= steps_, kInternal, "[adamw] step ", step,
               " has not begun, the last one is ", steps_);
  const kernels::StepReport report = ops::wait_report(exchange_, step, control_.device());
  return {report.grad_norm,     report.skipped != 0,  report.loss_scale,
          report.applied_steps, report.skipped_steps, report.loss};
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
  control.steps = steps_;
  control_.copy_(ops::make_step_control(control, at::kCPU));
}

}  // namespace kinora::optim
