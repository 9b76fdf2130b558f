#include "kinora/train/training_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"
#include "kinora/data/normalise.h"
#include "kinora/device/device.h"
#include "kinora/inference/conditions.h"
#include "kinora/models/families.h"
#include "kinora/ops/random.h"

namespace kinora::train {

TrainingStep::TrainingStep(diffusion::Denoiser& denoiser, Boosted& boosted,
                           const diffusion::Objective& objective,
                           diffusion::LossSecondMoment* importance, const StepSettings& settings)
    : denoiser_(denoiser),
      boosted_(boosted),
      objective_(objective),
      importance_(importance),
      settings_(settings),
      recording_(settings.graph_limit),
      pool_(settings.graphs ? std::make_unique<device::GraphPool>() : nullptr) {}
TrainingStep::~TrainingStep() = default;

MicroBatch TrainingStep::inputs_of(const data::Batch& batch, int64_t step) const {
  MicroBatch inputs = micro_batch_of(batch, settings_.model);
  const int64_t frames = inference::clip_size(batch.images).frames;
  const bool is_told = models::shape_of(settings_.model).given_way != diffusion::GivenWay::kNone;
  if (settings_.frame_masks.any() && frames > 1 && is_told) {
    inputs.conditions.frame_mask = diffusion::draw_frame_masks(
        settings_.frame_masks, frames,
        {.seed = settings_.seed, .step = step, .sample_index = batch.sample_index},
        settings_.model.frame_compression);
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
  if (settings_.label_dropout > 0.0 || settings_.pooled_dropout > 0.0) {
    const at::Tensor draws =
        ops::random_uniform({x0.size(0), 2}, batch.sample_index, settings_.seed, step,
                            RandomPurpose::kLabelDropout, settings_.device);
    const at::Tensor draw = draws.select(1, 0);
    if (settings_.pooled_dropout > 0.0) {
      conditions.null_pooled = draws.select(1, 1) < settings_.pooled_dropout;
    }
    inference::drop_conditions(conditions, draw < settings_.label_dropout, model.num_classes);
    if (const models::ShownInput input = models::shape_of(model).input;
        input == models::ShownInput::kEdit || input == models::ShownInput::kSubjects) {
      inference::drop_pictures(conditions, draw, settings_.label_dropout);
    }
  }
  if (const at::Tensor& mask = conditions.frame_mask; mask.defined()) {
    const at::Tensor& shown = conditions.given.defined() ? conditions.given : x0;
    conditions.given = at::where(mask.view({mask.size(0), 1, mask.size(1), 1, 1}), 0.0, shown);
  }
  diffusion::NoisedBatch noised = diffusion::noise(
      objective_, x0, {.seed = settings_.seed, .step = step, .sample_index = batch.sample_index},
      importance_,
      {.size_shift = diffusion::size_shift(objective_, inference::extent_of(model, size)),
       // Frames that are given beside x_t are noised, and count, as the others.
       .frame_mask = models::shape_of(model).given_way == diffusion::GivenWay::kClean
                         ? conditions.frame_mask
                         : at::Tensor()});
  noised.place_weights = place_weights(batch.mask, x0);
  const at::Tensor prediction = denoiser_.forward(noised.x_t, noised.t, conditions, pass);
  if (!prediction.defined()) {
    return {.loss = {}, .t = noised.t};
  }
  return {.loss = diffusion::loss(objective_, prediction, noised, x0), .t = noised.t};
}

at::Tensor TrainingStep::forward_backward(const std::vector<data::Batch>& micro_batches,
                                          int64_t step, const PriorPasses& prior,
                                          const SpreadPasses& spread) {
  seen_t_.clear();
  seen_loss_.clear();
  boosted_.begin_step();
  if (spread.samples > 0) {
    spread_steps(micro_batches, spread, step);
    return boosted_.end_step();
  }
  const size_t first_prior = micro_batches.size() - static_cast<size_t>(prior.count);
  std::array<int64_t, 2> samples = {0, 0};  // of this rank; of prior_data
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    samples[i < first_prior ? 0 : 1] += micro_batches[i].images.size(0);
  }
  std::vector<Part> parts;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const data::Batch& batch = micro_batches[i];
    const bool is_prior = i >= first_prior;
    // Alone, all passes but the first are the same.
    parts.push_back(
        {.turn = {.first = i == 0,
                  .last = boosted_.parallel() == nullptr || i + 1 == micro_batches.size()},
         .share = (is_prior ? prior.weight : 1.0) * static_cast<double>(batch.images.size(0)) /
                  static_cast<double>(samples[is_prior ? 1 : 0] * settings_.ranks)});
  }
  if (settings_.pipeline.links != nullptr) {
    pipeline_steps(micro_batches, parts, step);
    return boosted_.end_step();
  }
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const MicroBatch inputs = inputs_of(micro_batches[i], step);
    if (settings_.graphs) {
      replay(inputs, parts[i], step);
    } else {
      micro_step(inputs, parts[i], static_cast<uint32_t>(step));
    }
  }
  return boosted_.end_step();
}

void TrainingStep::spread_steps(const std::vector<data::Batch>& micro_batches,
                                const SpreadPasses& spread, int64_t step) {
  const diffusion::Pass first = boosted_.begin_pass({.first = true, .last = false});
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    settings_.divide_among(spread.ranks[i]);
    const diffusion::Pass pass{
        .starts_step = i == 0, .overwrite = i == 0 && first.overwrite, .new_weights = i == 0};
    const MicroLoss micro =
        micro_loss(inputs_of(micro_batches[i], step), static_cast<uint32_t>(step), pass);
    // Each of its ranks has the whole loss.
    boosted_.backward_of(micro.loss.mean,
                         static_cast<double>(micro_batches[i].images.size(0)) /
                             static_cast<double>(spread.samples * spread.ranks[i]));
  }
  settings_.divide_among(settings_.most_ranks);
  if (micro_batches.empty()) {
    boosted_.arena().zero_grad();  // which nothing has overwritten
  }
  boosted_.begin_last_backward();
  boosted_.end_passes();
}

double TrainingStep::pass_seconds(const data::Batch& batch, int64_t ranks, int64_t warmup,
                                  int64_t passes) {
  using Clock = std::chrono::steady_clock;
  boosted_.begin_step();
  (void)boosted_.begin_pass({.first = true, .last = false});
  settings_.divide_among(ranks);
  double least = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < warmup + passes; ++i) {
    device::synchronize(settings_.device);
    const Clock::time_point start = Clock::now();
    const MicroLoss micro = micro_loss(inputs_of(batch, /*step=*/0), uint32_t{0},
                                       {.starts_step = i == 0, .new_weights = i == 0});
    boosted_.backward_of(micro.loss.mean, 1.0);
    device::synchronize(settings_.device);
    least = i < warmup ? least : std::min(least, seconds_since(start));
  }
  settings_.divide_among(settings_.most_ranks);
  boosted_.end_passes();
  boosted_.arena().zero_grad();
  return least;
}

void TrainingStep::pipeline_steps(const std::vector<data::Batch>& micro_batches,
                                  const std::vector<Part>& parts, int64_t step) {
  std::vector<double> shares;
  for (const Part& part : parts) {
    shares.push_back(part.share);
  }
  run_pipeline(boosted_, settings_.pipeline, shares, [&](const StageForward& forward) {
    const data::Batch& batch = micro_batches[forward.micro_batch];
    const MicroLoss micro =
        micro_loss(inputs_of(batch, step), static_cast<uint32_t>(step), forward.pass);
    see_losses(micro, batch.images.size(0), forward.chunk);
    return micro.loss.mean;
  });
}

void TrainingStep::see_losses(const MicroLoss& micro, int64_t samples, int64_t chunk) {
  if (importance_ == nullptr || chunk + 1 < settings_.pipeline.links->plan().chunks()) {
    return;
  }
  seen_t_.push_back(micro.t);
  seen_loss_.push_back(micro.loss.per_sample.defined()
                           ? micro.loss.per_sample
                           : at::zeros({samples}, micro.t.options().dtype(at::kFloat)));
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

/// Micro-batches of one shape, and the graph that computes them.
struct TrainingStep::Recorded {
  MicroBatch outline;  // without values
  Part part;
  RecordingChoice::Shape shape;
  MicroBatch inputs;  // of the graph, on the device
  device::Graph graph;
};

TrainingStep::Recorded& TrainingStep::recorded_for(const MicroBatch& batch, const Part& part) {
  for (const std::unique_ptr<Recorded>& entry : recorded_) {
    if (entry->part == part && same_shapes(entry->outline, batch)) {
      return *entry;
    }
  }
  auto entry = std::make_unique<Recorded>();
  entry->outline = empty_like(batch, at::kMeta);
  entry->part = part;
  recorded_.push_back(std::move(entry));
  return *recorded_.back();
}

void TrainingStep::replay(const MicroBatch& batch, const Part& part, int64_t step) {
  using Action = RecordingChoice::Action;
  if (!graph_step_.defined()) {
    graph_step_ = at::zeros({1}, at::device(settings_.device).dtype(at::kLong));
  }
  graph_step_.fill_(step);
  Recorded& recorded = recorded_for(batch, part);
  const auto compute = [&] {  // with the kernels that a graph would launch
    const MicroBatch inputs = empty_like(batch, settings_.device);
    copy(batch, inputs);
    micro_step(inputs, part, ops::RandomStep(graph_step_));
  };
  const Action action = recording_.next(recorded.shape, step);
  if (action == Action::kMeasure) {
    recording_.measured(recorded.shape, device::reserved_by(compute));
  } else if (action == Action::kReplay ||
             (action == Action::kTryToRecord && try_to_record(recorded))) {
    copy(batch, recorded.inputs);
    recorded.graph.replay();
  } else {
    compute();
  }
}

bool TrainingStep::try_to_record(Recorded& recorded) {
  if (!has_room_) {
    recorded.shape.state = RecordingChoice::Shape::State::kRefused;
    return false;
  }
  const int64_t inputs = num_bytes(recorded.outline);
  if (settings_.graph_limit) {
    const std::string refusal = recording_.refusal(
        recorded.shape, inputs,
        {.taken = pool_->num_bytes() + graph_inputs_, .free = device::free_bytes()});
    if (!refusal.empty()) {
      recorded.shape.state = RecordingChoice::Shape::State::kRefused;
      log_info("[train] no CUDA graph for batches of ", recorded.outline.images.sizes(), ": ",
               refusal);
      return false;
    }
  }
  recorded.inputs = empty_like(recorded.outline, settings_.device);
  try {
    recorded.graph.record(
        [&] { micro_step(recorded.inputs, recorded.part, ops::RandomStep(graph_step_)); },
        pool_.get());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kMemory || !boosted_.is_alone()) {
      throw;
    }
    recorded.inputs = {};
    recorded.shape.state = RecordingChoice::Shape::State::kRefused;
    has_room_ = false;
    log_warn(error.what(), ". Steps that are not recorded yet are launched kernel by kernel");
    return false;
  }
  recorded.shape.state = RecordingChoice::Shape::State::kRecorded;
  graph_inputs_ += inputs;
  return true;
}

std::string TrainingStep::describe_graphs() const {
  if (!settings_.graphs || !settings_.graph_limit) {
    return {};
  }
  const auto recorded = std::ranges::count_if(recorded_, [](const auto& entry) {
    return entry->shape.state == RecordingChoice::Shape::State::kRecorded;
  });
  return counted(recorded, "CUDA graph") + " of " + counted(std::ssize(recorded_), "shape") +
         " of batches, " + human_bytes(pool_->num_bytes() + graph_inputs_);
}

void TrainingStep::forward_only(const std::vector<data::Batch>& micro_batches, int64_t step,
                                const SpreadPasses& spread) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    if (spread.samples > 0) {
      settings_.divide_among(spread.ranks[i]);
    }
    (void)micro_loss(inputs_of(micro_batches[i], step), static_cast<uint32_t>(step), {});
  }
  if (spread.samples > 0) {
    settings_.divide_among(settings_.most_ranks);
  }
}

void TrainingStep::update_importance() {
  if (importance_ == nullptr) {
    return;
  }
  at::Tensor t = at::cat(seen_t_).to(at::kCPU, at::kLong).contiguous();
  at::Tensor loss = at::cat(seen_loss_).to(at::kFloat).contiguous();
  if (settings_.pipeline.links != nullptr) {
    settings_.pipeline.links->group().all_reduce(loss);  // the last stage's
  }
  loss = loss.to(at::kCPU);
  if (boosted_.parallel() != nullptr) {
    t = boosted_.parallel()->of_all_samples(t);
    loss = boosted_.parallel()->of_all_samples(loss);
  }
  loss = loss.to(at::kDouble);
  importance_->update({t.const_data_ptr<int64_t>(), static_cast<size_t>(t.numel())},
                      {loss.const_data_ptr<double>(), static_cast<size_t>(loss.numel())});
}

}  // namespace kinora::train
