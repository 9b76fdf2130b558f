#pragma once

#include <cstdint>

#include "kinora/train/records/run_log.h"

namespace kinora::train {

/// What looks at a run while it trains, and does something about it every so many steps. Each hook
/// is called on all ranks, and of all observers in the order in which the run has them. `step`
/// counts the updates begun.
class RunObserver {
 public:
  RunObserver() = default;
  RunObserver(const RunObserver&) = delete;
  RunObserver& operator=(const RunObserver&) = delete;
  virtual ~RunObserver() = default;

  /// The first step will be `step` + 1.
  virtual void run_begins(int64_t /*step*/) {}
  virtual void before_step(int64_t /*step*/) {}
  /// Whether after_step(step) looks at the device's memory: then no step may be on its way.
  [[nodiscard]] virtual bool looks_at(int64_t /*step*/) const { return false; }
  /// A step is finished, in order; on a GPU others may be on their way. May add to its record.
  virtual void step_finished(StepRecord& /*record*/) {}
  virtual void after_step(int64_t /*step*/) {}
  /// All steps are finished.
  virtual void run_ended(int64_t /*step*/) {}
};

/// Whether what happens every so many steps (0: never) happens after `step`.
[[nodiscard]] constexpr bool is_due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

}  // namespace kinora::train
