#pragma once

#include <cstdint>

#include "kinora/checkpoint/writer.h"
#include "kinora/train/run.h"
#include "kinora/train/run_observer.h"

namespace kinora::train {

/// Saves a run every checkpoint.every steps and at its end, in the background.
class RunCheckpoints : public RunObserver {
 public:
  /// Borrows the run.
  explicit RunCheckpoints(Run& run);

  [[nodiscard]] bool looks_at(int64_t step) const override;
  void after_step(int64_t step) override;

  /// As it is now; no step may be on its way.
  void save();
  /// Until what was saved is on the disk. kIo.
  void wait() { writer_.wait(); }

 private:
  Run& run_;
  checkpoint::Writer writer_;
};

/// Writes model.safetensors, and the adapter of a run with low-rank updates.
void export_weights(Run& run);

}  // namespace kinora::train
