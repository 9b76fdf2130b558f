#pragma once

#include <cstdint>

#include "kinora/train/run.h"
#include "kinora/train/run_observer.h"
#include "kinora/train/validation.h"

namespace kinora::train {

/// Adds the loss on the held-out samples to the record of every validation.every-th step: of the
/// raw weights, and of each average.
class RunValidation : public RunObserver {
 public:
  /// Borrows the run; loads the samples.
  explicit RunValidation(Run& run);

  [[nodiscard]] bool looks_at(int64_t step) const override;
  void step_finished(StepRecord& record) override;

 private:
  Run& run_;
  Validation validation_;
};

}  // namespace kinora::train
