#include "kinora/train/training_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "kinora/data/normalise.h"
#include "kinora/device/graph.h"
#include "kinora/inference/conditions.h"
#include "kinora/ops/random.h"

namespace kinora::train {

TrainingStep::TrainingStep(diffusion::Denoiser& denoiser, Boosted& boosted,
                           const diffusion::Objective& objective,
                           diffusion::LossSecondMoment* importance, const StepSettings& settings)
    : denoiser_(denoiser),
      boosted_(boosted),
      objective_(objective),
      importance_(importance),
      settings_(settings) {}
TrainingStep::~TrainingStep() = default;

MicroBatch TrainingStep::inputs_of(const data::Batch& batch, int64_t step) const {
  MicroBatch inputs = micro_batch_of(batch, settings_.model);
  const int64_t frames = inference::clip_size(batch.images).frames;
  if (settings_.frame_masks.sum() > 0.0 && frames > 1) {
    inputs.conditions.frame_mask = diffusion::draw_frame_masks(
        settings_.frame_masks, frames, settings_.seed, step, batch.sample_index);
  }
  return inputs;
}

TrainingStep::MicroLoss TrainingStep::micro_loss(const MicroBatch& batch,
                                                 const ops::RandomStep& step,
                                                 const diffusion::Pass& pass) {
  const models::ModelConfig& model = settings_.model;
  const inference::ClipSize size = inference::clip_size(batch.images);
  const at::Tensor x0 = data::to_float(batch.images, settings_.device);
  diffusion::Conditions conditions = inference::to_device(batch.conditions, settings_.device);
  if (settings_.label_dropout > 0.0) {
    const at::Tensor draw =
        ops::random_uniform({x0.size(0)}, batch.sample_index, settings_.seed, step,
                            RandomPurpose::kLabelDropout, settings_.device);
    inference::drop_conditions(conditions, draw < settings_.label_dropout, model.num_classes);
  }
  if (const at::Tensor& mask = conditions.frame_mask; mask.defined()) {
    conditions.given = at::where(mask.view({mask.size(0), 1, mask.size(1), 1, 1}), 0.0, x0);
  }
  const diffusion::NoisedBatch noised = diffusion::noise(
      objective_, x0, {.seed = settings_.seed, .step = step, .sample_index = batch.sample_index},
      importance_,
      {.size_shift = diffusion::size_shift(
           objective_, static_cast<double>(size.height * model.compression),
           static_cast<double>(size.width * model.compression), static_cast<double>(size.frames)),
       .frame_mask = conditions.frame_mask});
  const at::Tensor prediction = denoiser_.forward(noised.x_t, noised.t, conditions, pass);
  return {.loss = diffusion::loss(objective_, prediction, noised, x0), .t = noised.t};
}

at::Tensor TrainingStep::forward_backward(const std::vector<data::Batch>& micro_batches,
                                          int64_t step) {
  seen_t_.clear();
  seen_loss_.clear();
  boosted_.begin_step();
  int64_t own = 0;
  for (const data::Batch& batch : micro_batches) {
    own += batch.images.size(0);
  }
  for (const data::Batch& batch : micro_batches) {
    // Alone, all passes but the first are the same.
    const Part part{
        .turn = {.first = &batch == &micro_batches.front(),
                 .last = boosted_.parallel() == nullptr || &batch == &micro_batches.back()},
        .share =
            static_cast<double>(batch.images.size(0)) / static_cast<double>(own * settings_.ranks)};
    const MicroBatch inputs = inputs_of(batch, step);
    if (settings_.graphs) {
      replay(inputs, part, step);
    } else {
      micro_step(inputs, part, static_cast<uint32_t>(step));
    }
  }
  return boosted_.end_step();
}

void TrainingStep::micro_step(const MicroBatch& batch, const Part& part,
                              const ops::RandomStep& step) {
  const MicroLoss micro = micro_loss(batch, step, boosted_.begin_pass(part.turn));
  boosted_.end_pass(micro.loss.mean, part.share);
  if (importance_ != nullptr) {
    seen_t_.push_back(micro.t);
    seen_loss_.push_back(micro.loss.per_sample);
  }
}

/// A micro-batch's inputs at fixed addresses, and the graph that reads them.
struct TrainingStep::Recorded {
  MicroBatch inputs;  // on the device
  at::Tensor step;    // int64 [1]
  device::Graph graph;
  Part part;
  int64_t last_step = -1;
  int64_t steps = 0;  // seen so far
};

TrainingStep::Recorded& TrainingStep::recorded_for(const MicroBatch& batch, const Part& part) {
  constexpr size_t kMaxGraphs = 8;
  for (auto entry = recorded_.begin(); entry != recorded_.end(); ++entry) {
    if ((*entry)->part == part && same_shapes((*entry)->inputs, batch)) {
      recorded_.splice(recorded_.begin(), recorded_, entry);
      return *recorded_.front();
    }
  }
  if (recorded_.size() == kMaxGraphs) {
    recorded_.pop_back();
  }
  auto entry = std::make_unique<Recorded>();
  entry->part = part;
  entry->inputs = empty_like(batch, settings_.device);
  entry->step = at::zeros({1}, at::device(settings_.device).dtype(at::kLong));
  recorded_.push_front(std::move(entry));
  return *recorded_.front();
}

void TrainingStep::replay(const MicroBatch& batch, const Part& part, int64_t step) {
  constexpr int64_t kEagerSteps = 2;  // fp8 measures magnitudes, libraries choose their algorithms
  Recorded& recorded = recorded_for(batch, part);
  copy(batch, recorded.inputs);
  recorded.step.fill_(step);
  const auto work = [&] { micro_step(recorded.inputs, part, ops::RandomStep(recorded.step)); };
  if (recorded.last_step != step) {
    recorded.last_step = step;
    ++recorded.steps;
  }
  if (recorded.steps <= kEagerSteps) {
    work();
    return;
  }
  if (!recorded.graph.is_recorded()) {
    recorded.graph.record(work);
  }
  recorded.graph.replay();
}

void TrainingStep::forward_only(const std::vector<data::Batch>& micro_batches, int64_t step) {
  at::NoGradGuard no_grad;
  for (const data::Batch& batch : micro_batches) {
    (void)micro_loss(inputs_of(batch, step), static_cast<uint32_t>(step), {});
  }
}

void TrainingStep::update_importance() {
  if (importance_ == nullptr) {
    return;
  }
  at::Tensor t = at::cat(seen_t_).to(at::kCPU, at::kLong).contiguous();
  at::Tensor loss = at::cat(seen_loss_).to(at::kCPU, at::kFloat).contiguous();
  if (boosted_.parallel() != nullptr) {
    t = boosted_.parallel()->of_all_samples(t);
    loss = boosted_.parallel()->of_all_samples(loss);
  }
  loss = loss.to(at::kDouble);
  importance_->update({t.const_data_ptr<int64_t>(), static_cast<size_t>(t.numel())},
                      {loss.const_data_ptr<double>(), static_cast<size_t>(loss.numel())});
}

}  // namespace kinora::train
