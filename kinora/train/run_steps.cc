#include "kinora/train/run_steps.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/updates.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/fp8.h"
#include "kinora/train/dynamic_sequence.h"
#include "kinora/train/finetune.h"
#include "kinora/train/non_finite.h"
#include "kinora/train/out_of_memory.h"

namespace kinora::train {
namespace {

// Parameters that a message names.
constexpr size_t kMaxNamesInMessage = 4;

StepSettings step_settings(const Run& run) {
  Trainable& trainable = *run.trainable;
  return {.seed = static_cast<uint64_t>(run.config.train.seed),
          .label_dropout = run.config.train.label_dropout,
          .pooled_dropout = run.config.train.pooled_dropout,
          .model = run.config.model,
          .frame_masks = run.config.frame_masks,
          .ranks = run.mesh.gradient_ranks(),
          .device = run.device,
          .graphs = use_graphs(run.config, trainable.kernels()) && trainable.can_be_recorded(),
          .graph_limit = graph_limit(run.config),
          .pipeline = trainable.pipeline(),
          .divide_among = [&trainable](int64_t ranks) { trainable.divide_among(ranks); },
          .most_ranks = run.mesh.shape().sequence};
}

}  // namespace

RunSteps::RunSteps(Run& run)
    : run_(run),
      step_(run.trainable->model(), run.trainable->boosted(), run.objective,
            run.importance ? &*run.importance : nullptr, step_settings(run)),
      times_(run.mesh.world(), run.config.train.log_every) {
  if (run.config.dynamic_sequence) {
    ops::BlockKernels* const kernels = run.trainable->kernels();
    ops::Fp8* const fp8 = kernels != nullptr ? kernels->fp8() : nullptr;
    const auto scales = fp8 != nullptr ? fp8->state() : std::nullopt;  // of a run that goes on
    run.share_out = share_out(seconds_by_degree(run.config, step_, run.device, run.mesh.world()),
                              run.mesh.world());
    if (scales) {
      fp8->restore(*scales);
    } else if (fp8 != nullptr) {
      fp8->begin_anew();
    }
  }
  if (run.config.train.self_test && run.state.step == 0) {
    self_test_ = std::make_unique<SelfTest>(inference::trained_parameters(run.trainable->model()),
                                            run.trainable->arena());
  }
}

void RunSteps::begin(StepSamples samples) {
  checkpoint::TrainingState& state = run_.state;
  PendingStep pending{.step = state.step + 1,
                      .number = 0,
                      .lr = run_.config.lr.at(state.step),
                      .samples = std::move(samples),
                      .waited = {}};
  run_.enter(Phase::kForwardBackward, pending.step);
  using Part = StepOutOfMemory::Part;
  Boosted& boosted = run_.trainable->boosted();
  const bool in_backward = run_.config.optim.in_backward;
  const Part passes = in_backward ? Part::kUpdate : Part::kForwardBackward;
  const at::Tensor loss = within_memory(pending.step, passes, [&] {
    boosted.begin_update(pending.lr);
    return step_.forward_backward(pending.samples.batches, state.step, prior_of(pending.samples),
                                  spread_of(pending.samples));
  });
  if (self_test_ && !in_backward) {
    self_test_->see_gradients(run_.trainable->arena());
  }
  if (!boosted.is_alone() || boosted.parallel() != nullptr) {
    pending.waited = boosted.waited();
  }
  pending.number =
      within_memory(pending.step, Part::kUpdate, [&] { return boosted.enqueue_update(loss); });
  state.step += 1;
  (pending.samples.kind == StepKind::kData ? state.position : state.image_position) +=
      pending.samples.global_batch;
  pending_.push_back(std::move(pending));
}

bool RunSteps::one_at_a_time() const {
  return self_test_ != nullptr || run_.importance.has_value() || !run_.device.is_cuda();
}

StepRecord RunSteps::finish() {
  const PendingStep pending = std::move(pending_.front());
  pending_.pop_front();
  run_.enter(Phase::kUpdate, pending.step);
  const optim::StepResult update = run_.trainable->optimizer().wait_report(pending.number);
  run_.watchdog->progress(pending.step);
  if (pending_.empty()) {  // others may look at weights and state now
    run_.trainable->optimizer().wait_for_all();
  }
  const double loss = update.loss;
  if (!std::isfinite(loss)) {
    stop_at_loss(pending, loss);
  }
  if (update.skipped) {
    note_skipped(pending, update);
  } else {
    skipped_in_a_row_ = 0;
    step_.update_importance();
  }
  if (self_test_ && pending.step == SelfTest::kSteps) {
    const kernels::UpdateRule rule = run_.config.optim.rule;
    const bool begins_small =
        rule == kernels::UpdateRule::kSgd || rule == kernels::UpdateRule::kProdigy;
    if (run_.config.optim.in_backward) {
      self_test_->see_moments(run_.trainable->arena());
    }
    self_test_->finish(run_.trainable->arena(),
                       begins_small ? SelfTest::SmallSteps::kWarn : SelfTest::SmallSteps::kStop);
    self_test_.reset();
  }
  const StepTimes times = times_of(pending);
  StepRecord record{.step = pending.step,
                    .kind = pending.samples.kind,
                    .has_kinds = run_.config.image_steps.any(),
                    .size = size_of(pending.samples),
                    .loss = loss,
                    .lr = pending.lr,
                    .grad_norm = update.grad_norm,
                    .loss_scale = update.loss_scale,
                    .distance = update.distance,
                    .skipped = update.skipped,
                    .samples_per_s = static_cast<double>(pending.samples.global_batch) / times.step,
                    .peak_memory = run_.peak_memory(),
                    .times = times,
                    .slowest = pending.samples.slowest,
                    .validation = {}};
  times_.add(pending.step, times);
  record.ranks = run_.writes() ? times_.take() : std::nullopt;
  return record;
}

StepTimes RunSteps::times_of(const PendingStep& pending) {
  const double data_wait = run_.samples->loader().stats().wait_seconds;
  return clock_.lap(data_wait, pending.waited.defined()
                                   ? std::optional(pending.waited.item<int64_t>())
                                   : std::nullopt);
}

PriorPasses RunSteps::prior_of(const StepSamples& samples) const {
  return {.count = samples.num_prior, .weight = run_.config.prior.weight};
}

SpreadPasses RunSteps::spread_of(const StepSamples& samples) {
  return {.samples = samples.num_batches > 0 ? samples.global_batch : 0, .ranks = samples.ranks};
}

/// Where steps are of many sizes.
std::optional<StepSize> RunSteps::size_of(const StepSamples& samples) const {
  const bool is_data = samples.kind == StepKind::kData;
  if ((is_data ? run_.config.data : run_.config.image_data).buckets.empty()) {
    return std::nullopt;
  }
  if (samples.num_batches > 0) {
    return StepSize{.samples = samples.global_batch, .size = {}, .batches = samples.num_batches};
  }
  return StepSize{.samples = samples.global_batch,
                  .size = inference::clip_size(samples.batches.front().images)};
}

void RunSteps::stop_at_loss(const PendingStep& pending, double loss) {
  run_.trainable->boosted().refresh();
  const auto found = find_non_finite_output(run_.trainable->model(), [&] {
    step_.forward_only(pending.samples.batches, pending.step - 1, spread_of(pending.samples));
  });
  throw_error(ErrorKind::kDiverged, "[train] training diverged at step ", pending.step,
              ": the loss is ", std::isnan(loss) ? "not a number" : "infinite",
              found ? "; the first output that is not finite is that of " + to_string(*found)
                    : "; every module's output is finite, so the loss itself overflows",
              ". The last checkpoint is from before. Hint: a lower lr.value, or "
              "optim.max_grad_norm");
}

void RunSteps::note_skipped(const PendingStep& pending, const optim::StepResult& update) {
  if (run_.config.precision == Precision::kFp16 && update.loss_scale >= 1.0F) {
    log_debug("[train] step ", pending.step, ": fp16 overflow, loss scale now ", update.loss_scale);
    return;
  }
  (void)step_.forward_backward(pending.samples.batches, pending.step - 1, prior_of(pending.samples),
                               spread_of(pending.samples));
  optim::Arena& arena = run_.trainable->arena();
  const std::vector<std::string> names =
      non_finite_gradients(inference::trained_parameters(run_.trainable->model()), arena);
  arena.zero_grad();
  ++skipped_in_a_row_;
  const int64_t most = run_.config.train.max_skipped;
  const std::string where =
      names.empty() ? "finite when computed again" : list_names(names, kMaxNamesInMessage);
  KINORA_CHECK(skipped_in_a_row_ < most, kDiverged, "[train] training diverged at step ",
               pending.step, ": gradients are not finite (", where, "), now ", skipped_in_a_row_,
               " in a row. Hint: a lower lr.value, or optim.max_grad_norm");
  log_warn("[train] step ", pending.step, " was skipped: gradients are not finite (", where, "); ",
           skipped_in_a_row_, " in a row of at most ", most);
}

}  // namespace kinora::train
