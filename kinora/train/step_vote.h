#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/comm/group.h"
#include "kinora/train/records/run_requests.h"

namespace kinora::train {

/// What a rank wants to happen before the next step, or what all of them do. Of several wishes the
/// largest counts, so that all ranks do the same.
struct StepWish {
  int64_t stop = 0;  ///< not 0: training ends, and why
  RunCommand command = RunCommand::kNone;
  double value = 0.0;  ///< of the command; not negative
};

/// Ranks tell each other their wishes while a step is under way, so that nobody waits for the
/// answer.
class StepVote {
 public:
  explicit StepVote(const comm::Group& world) : world_(world) {}

  /// Begins to tell the others. All ranks call it. At most one of them has a command.
  void ask(const StepWish& own);

  /// What all ranks do; nothing before the first ask(). kComm if a rank is gone.
  [[nodiscard]] StepWish answer();

 private:
  const comm::Group& world_;
  StepWish own_;
  at::Tensor votes_;  // int64 [3]: stop, command, bits of the value
  comm::Work question_;
};

}  // namespace kinora::train
