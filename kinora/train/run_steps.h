#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "kinora/optim/optimizer.h"
#include "kinora/train/records/run_log.h"
#include "kinora/train/run.h"
#include "kinora/train/self_test.h"
#include "kinora/train/step_samples.h"
#include "kinora/train/step_times.h"
#include "kinora/train/training_step.h"

namespace kinora::train {

/// The optimizer steps of a run. On a GPU the next ones are begun before one is finished.
class RunSteps {
 public:
  /// Borrows the run. kConfig where steps cannot be recorded as the recipe wants.
  explicit RunSteps(Run& run);

  /// Computes on the samples and updates the weights, without waiting for the device.
  /// StepOutOfMemory.
  void begin(StepSamples samples);
  /// Steps that are begun and not finished.
  [[nodiscard]] size_t num_pending() const { return pending_.size(); }
  /// Whether the host has to look at the device's memory between two steps, whoever else does.
  [[nodiscard]] bool one_at_a_time() const;

  /// Waits for the oldest of them, and says what it did. kDiverged, naming modules or parameters,
  /// for a loss that is not finite, for too many skipped steps in a row, and for parameters that do
  /// not learn.
  [[nodiscard]] StepRecord finish();

  /// As TrainingStep::describe_graphs().
  [[nodiscard]] std::string describe_graphs() const { return step_.describe_graphs(); }

  /// What has happened since the last step is no part of the next one's time.
  void restart_clock() { clock_.restart(); }

 private:
  /// A step on its way: what its report needs, and its samples, which the device may still read.
  struct PendingStep {
    int64_t step;    ///< counted from 1
    int64_t number;  ///< the optimizer's
    double lr;
    StepSamples samples;
    at::Tensor waited;  ///< Boosted::waited() at its end; undefined: there is nothing to wait for
  };

  [[noreturn]] void stop_at_loss(const PendingStep& pending, double loss);
  void note_skipped(const PendingStep& pending, const optim::StepResult& update);
  [[nodiscard]] PriorPasses prior_of(const StepSamples& samples) const;
  [[nodiscard]] static SpreadPasses spread_of(const StepSamples& samples);
  [[nodiscard]] std::optional<StepSize> size_of(const StepSamples& samples) const;
  [[nodiscard]] StepTimes times_of(const PendingStep& pending);

  Run& run_;
  TrainingStep step_;
  std::unique_ptr<SelfTest> self_test_;  // of a run's first steps
  std::deque<PendingStep> pending_;
  StepClock clock_;
  StepTimesExchange times_;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace kinora::train
