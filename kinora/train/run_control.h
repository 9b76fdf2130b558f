#pragma once

#include <cstdint>
#include <optional>

#include "kinora/core/stop_signal.h"
#include "kinora/train/records/run_requests.h"
#include "kinora/train/records/run_state.h"
#include "kinora/train/run.h"
#include "kinora/train/run_checkpoints.h"
#include "kinora/train/sample_grids.h"
#include "kinora/train/step_vote.h"

namespace kinora::train {

/// What ends or interrupts a run from outside: signals, requests of people, and a rank without
/// samples. The ranks do the same after the same step; what they ask each other in one step is
/// looked at in the next.
class RunControl {
 public:
  /// Borrows all. `stop` in the calls below may be null.
  RunControl(Run& run, RunCheckpoints& checkpoints, SampleGrids& grids)
      : run_(run), checkpoints_(checkpoints), grids_(grids), vote_(run.mesh.world()) {}

  /// The run begins to train: requests of earlier ones do not count.
  void begin();

  /// Tells the other ranks what this one wants.
  void ask(const StopSignal* stop) { vote_.ask(own_wish(stop)); }

  enum class Verdict {
    kGoOn,
    kObey,  ///< go on after obey(), for which no step may be on its way
    kEnd,
  };
  /// What all ranks do before the next step.
  [[nodiscard]] Verdict verdict(const StopSignal* stop);
  /// Does what was asked of the run. False: it shall end.
  [[nodiscard]] bool obey(const StopSignal* stop);

  /// When all steps are finished: hears the last vote, and says why a run ends before
  /// train.steps.
  void hear_last_vote() { (void)vote_.answer(); }
  void say_why(const StopSignal* stop) const;
  /// When all is saved. The rank without samples ends with its own error, the others with kComm.
  void end();
  /// The run ends by an error, for `kinora runs`. Throws nothing.
  void say_error(const std::string& why);

 private:
  static constexpr int64_t kFirstRankVote = 2;  // StepWish::stop of rank 0 without samples

  [[nodiscard]] StepWish own_wish(const StopSignal* stop);
  [[nodiscard]] bool is_stopped(const StopSignal* stop);
  [[nodiscard]] bool pause(const StopSignal* stop);
  [[nodiscard]] RunAnswer answer_of(const StepWish& wish);
  void reply(RunAnswer answer);
  void reply_to_the_last();
  void say_state(RunState state);
  void write_state_of(RunState state, const std::string& error);
  void renew_config();
  [[noreturn]] void end_without_data() const;

  Run& run_;
  RunCheckpoints& checkpoints_;
  SampleGrids& grids_;
  StepVote vote_;
  StepWish wish_;  // the last answer
  RequestBox requests_{run_.directory.requests()};
  std::optional<RunRequest> asked_;  // taken and not replied to; rank 0's
  double next_look_ = 0.0;           // at requests_, in seconds of the host's clock
  RunState said_ = RunState::kTraining;
  BestEffort write_state_{"state.json"};
  BestEffort use_requests_{"requests of kinora runs"};
};

}  // namespace kinora::train
