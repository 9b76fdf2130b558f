#pragma once

#include <cstdint>

#include "kinora/checkpoint/writer.h"
#include "kinora/core/error.h"
#include "kinora/train/run.h"
#include "kinora/train/run_observer.h"

namespace kinora::train {

/// Saves a run every checkpoint.every steps and at its end, in the background. Where a checkpoint
/// cannot be written, the state at the moment when that is noticed is tried once more; a second
/// failure ends the run.
class RunCheckpoints : public RunObserver {
 public:
  /// Borrows the run.
  explicit RunCheckpoints(Run& run);

  [[nodiscard]] bool looks_at(int64_t step) const override;
  void after_step(int64_t step) override;

  /// As it is now; no step may be on its way. kIo: what was saved before could not be written, nor
  /// the state as it is now.
  void save();
  /// Until what was saved is on the disk; no step may be on its way. kIo as above.
  void wait();
  /// Until it is on the disk or could not be written, which is only logged. The other ranks may be
  /// in a step.
  void finish_writing();

 private:
  void update_state();
  void try_again(const Error& failure);

  Run& run_;
  checkpoint::Writer writer_;
};

/// Writes model.safetensors, and the adapter of a run with low-rank updates.
void export_weights(Run& run);

}  // namespace kinora::train
