#pragma once

#include <cstdint>
#include <deque>
#include <exception>

#include "kinora/train/encode_stage.h"
#include "kinora/train/step_samples.h"

namespace kinora::train {

/// The samples of a run's steps to come, already on their way to the device.
class StepSupply {
 public:
  /// Borrows `stage`.
  StepSupply(StepLoader loader, const EncodeStage& stage);

  /// Takes the samples of the next step and of that behind it from the loader, of at most
  /// `steps_left`: all ranks have to hear that one of them has none before they begin a step that
  /// it cannot take part in. An error of the loader is kept, and nothing is taken any more; nor is
  /// it by ranks that encode together where one of them has one, which then must not be asked
  /// again.
  void fetch(int64_t steps_left);

  /// Those of the next step, for what the current stream gets from now on. After fetch(), and
  /// without an error.
  [[nodiscard]] StepSamples take();

  /// Why there are no more; null: there are.
  [[nodiscard]] const std::exception_ptr& error() const { return error_; }
  [[nodiscard]] const StepLoader& loader() const { return loader_; }

 private:
  StepLoader loader_;
  const EncodeStage& stage_;
  std::deque<StepSamples> samples_;
  std::exception_ptr error_;
};

}  // namespace kinora::train
