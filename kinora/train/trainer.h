#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kinora/comm/group.h"
#include "kinora/core/stop_signal.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// How a run ended.
struct TrainResult {
  int64_t step = 0;        ///< optimizer updates done in all
  bool complete = false;   ///< train.steps is reached; else a signal stopped it
  double last_loss = 0.0;  ///< of the last step of this call; 0 if it took none
};

/// A run of training, from the configuration to checkpoints. Everything that can be refused is
/// refused by the constructor, before the first step.
class Trainer {
 public:
  /// Opens data and run directory, builds or resumes the model. The errors of all of these. Several
  /// ranks (`world`) each make one from the same recipe, and first check that they have
  /// (rank_agreement.h); rank 0 alone writes logs and samples.
  Trainer(const RunConfig& config, const Resume& resume, const comm::Group& world = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until train.steps or until `stop` (may be null) is requested of any rank; either way
  /// the last state is saved. A step that finds too little memory is done again with a smaller
  /// plan, if train.oom says so, in the same call; of several ranks it is StartAgain
  /// (out_of_memory.h).
  TrainResult run(const StopSignal* stop = nullptr);

 private:
  class Impl;
  RunConfig config_;
  Resume resume_;
  comm::Group world_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::train
