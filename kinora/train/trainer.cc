#include "kinora/train/trainer.h"

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/log.h"
#include "kinora/device/free_memory.h"
#include "kinora/train/out_of_memory.h"
#include "kinora/train/plan/memory_budget.h"
#include "kinora/train/run.h"
#include "kinora/train/run_announcement.h"
#include "kinora/train/run_checkpoints.h"
#include "kinora/train/run_control.h"
#include "kinora/train/run_observer.h"
#include "kinora/train/run_profile.h"
#include "kinora/train/run_steps.h"
#include "kinora/train/run_validation.h"
#include "kinora/train/sample_grids.h"
#include "kinora/train/step_reports.h"

namespace kinora::train {

class Trainer::Impl {
 public:
  Impl(const RunConfig& config, const Resume& resume, const comm::Group& world)
      : run_(config, resume, world),
        checkpoints_(run_),
        steps_(run_),
        grids_(run_),
        control_(run_, checkpoints_, grids_) {
    if (run_.config.train.profile_steps > 0) {
      observers_.push_back(&profile_.emplace(run_));
    }
    if (run_.config.validation.every > 0) {
      observers_.push_back(&validation_.emplace(run_));
    }
    observers_.push_back(&checkpoints_);
    observers_.push_back(&grids_);
    if (run_.writes()) {
      observers_.push_back(&reports_.emplace(run_));
    }
  }

  TrainResult run(const StopSignal* stop) {
    if (run_.is_complete()) {
      log_info("[train] step ", run_.state.step, " of ", run_.config.train.steps,
               ": there is nothing to do. Hint: raise train.steps to go on");
      return {.step = run_.state.step, .complete = true};
    }
    first_step_ = run_.state.step;
    begin();
    fetch(stop);
    while (!run_.is_complete() && goes_on(stop)) {
      fetch(stop);
      for (RunObserver* observer : observers_) {
        observer->before_step(run_.state.step);
      }
      steps_.begin(run_.samples->take());
      finish_steps(steps_ahead());
      for (RunObserver* observer : observers_) {
        observer->after_step(run_.state.step);
      }
    }
    finish_steps(0);
    end(stop);
    return {.step = run_.state.step, .complete = run_.is_complete(), .last_loss = last_loss_};
  }

  void say_error(const std::string& why) { control_.say_error(why); }
  [[nodiscard]] at::Device device() const { return run_.device; }

  /// After a step that found no memory: the run's next attempt has settings that need less. What it
  /// begins with: the state of before the step, which is saved. With several ranks, of which the
  /// others wait for this one within the step, all start again.
  [[nodiscard]] Resume replan(const StepOutOfMemory& error, const Resume& resume) {
    const PlanChoice choice = plan_after(error, run_);
    if (run_.mesh.world().size() > 1) {
      checkpoints_.finish_writing();  // the others' writers go on while their steps wait
      keep_plan(choice.config);
      throw StartAgain("[train] rank " + std::to_string(run_.mesh.world().rank()) +
                       " had not enough memory; all ranks start again from the last checkpoint "
                       "with " +
                       choice.text());
    }
    finish_steps(0);
    for (RunObserver* observer : observers_) {
      observer->run_ended(run_.state.step);
    }
    control_.hear_last_vote();
    const bool has_moved = run_.state.step > first_step_;
    if (has_moved) {
      checkpoints_.save();
      checkpoints_.wait();
    }
    keep_plan(choice.config);
    run_.stop();
    if (run_.log) {
      run_.log->flush();
    }
    return has_moved || resume.mode == Resume::Mode::kNever
               ? Resume{.mode = Resume::Mode::kAuto, .checkpoint = {}}
               : resume;
  }

 private:
  void begin() {
    run_.open_log();
    control_.begin();
    announce(run_);
    run_.start();
    for (RunObserver* observer : observers_) {
      observer->run_begins(run_.state.step);
    }
    last_loss_ = 0.0;
    steps_.restart_clock();
  }

  /// The samples of the next steps; then the other ranks hear whether this one has them.
  void fetch(const StopSignal* stop) {
    run_.enter(Phase::kData, run_.state.step + 1);
    run_.samples->fetch(run_.config.train.steps - run_.state.step);
    control_.ask(stop);
  }

  [[nodiscard]] bool goes_on(const StopSignal* stop) {
    const RunControl::Verdict verdict = control_.verdict(stop);
    if (verdict != RunControl::Verdict::kObey) {
      return verdict == RunControl::Verdict::kGoOn;
    }
    finish_steps(0);
    const bool goes_on = control_.obey(stop);
    steps_.restart_clock();
    return goes_on;
  }

  /// Steps that may be on their way when the next is begun.
  [[nodiscard]] size_t steps_ahead() const {
    constexpr size_t kStepsAhead = 2;
    bool looks = steps_.one_at_a_time();
    for (const RunObserver* observer : observers_) {
      looks = looks || observer->looks_at(run_.state.step);
    }
    return looks ? 0 : kStepsAhead;
  }

  /// All but the last `left`.
  void finish_steps(size_t left) {
    while (steps_.num_pending() > left) {
      StepRecord record = steps_.finish();
      last_loss_ = record.loss;
      for (RunObserver* observer : observers_) {
        observer->step_finished(record);
      }
    }
  }

  /// Saves what is not saved yet, and lets go of what a run has while it trains.
  void end(const StopSignal* stop) {
    for (RunObserver* observer : observers_) {
      observer->run_ended(run_.state.step);
    }
    control_.hear_last_vote();
    if (!run_.is_complete()) {
      checkpoints_.save();
      control_.say_why(stop);
    }
    run_.enter(Phase::kCheckpoint, run_.state.step);
    checkpoints_.wait();
    control_.end();
    if (run_.is_complete() && run_.config.checkpoint.export_weights) {
      export_weights(run_);
    }
    const data::LoaderStats stats = run_.samples->loader().stats();
    run_.stop();
    if (run_.log) {
      run_.log->flush();
    }
    announce_end(run_, stats);
    if (const std::string graphs = steps_.describe_graphs(); run_.writes() && !graphs.empty()) {
      log_info("[train] ", graphs);
    }
  }

  Run run_;
  RunCheckpoints checkpoints_;
  RunSteps steps_;
  SampleGrids grids_;
  std::optional<RunProfile> profile_;
  std::optional<RunValidation> validation_;
  std::optional<StepReports> reports_;  // rank 0's
  RunControl control_;
  std::vector<RunObserver*> observers_;  // those above, in the order in which they are called
  double last_loss_ = 0.0;
  int64_t first_step_ = 0;  // before it
};

Trainer::Trainer(const RunConfig& config, const Resume& resume, const comm::Group& world)
    : config_(config),
      resume_(resume),
      world_(world),
      impl_(std::make_unique<Impl>(config, resume, world)) {}
Trainer::~Trainer() = default;

TrainResult Trainer::run(const StopSignal* stop) {
  while (true) {
    try {
      try {
        return impl_->run(stop);
      } catch (const StepOutOfMemory& error) {
        resume_ = impl_->replan(error, resume_);
      }
    } catch (const std::exception& error) {
      impl_->say_error(error.what());
      throw;
    }
    const at::Device device = impl_->device();
    impl_.reset();
    device::release_unused(device);
    impl_ = std::make_unique<Impl>(config_, resume_, world_);
  }
}

}  // namespace kinora::train
