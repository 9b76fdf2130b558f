#pragma once

#include <cstdint>
#include <optional>

#include "kinora/core/progress.h"
#include "kinora/train/run.h"
#include "kinora/train/run_observer.h"
#include "kinora/train/step_times.h"

namespace kinora::train {

/// What rank 0 says of every finished step: a line of the log, and how far the run is.
class StepReports : public RunObserver {
 public:
  /// Borrows the run.
  explicit StepReports(Run& run) : run_(run) {}

  void run_begins(int64_t step) override;
  void step_finished(StepRecord& record) override;
  void run_ended(int64_t step) override;

 private:
  Run& run_;
  std::optional<Progress> progress_;
  RankTimes ranks_;  // the last that came together
  int64_t finished_ = 0;
};

}  // namespace kinora::train
