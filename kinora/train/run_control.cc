#include "kinora/train/run_control.h"

#include <chrono>
#include <exception>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/seconds.h"
#include "kinora/device/device.h"

namespace kinora::train {
namespace {

// Between two looks at what is asked of the run, and of a paused one.
constexpr double kSecondsBetweenLooks = 0.2;

}  // namespace

void RunControl::begin() {
  if (run_.writes()) {
    requests_.clear();
    say_state(RunState::kTraining);
  }
}

/// To stop for a signal (1) or for want of samples (kFirstRankVote + rank), and on rank 0 what was
/// asked of the run.
StepWish RunControl::own_wish(const StopSignal* stop) {
  if (run_.samples->error() != nullptr) {
    return {.stop = kFirstRankVote + run_.mesh.world().rank()};
  }
  if (run_.writes() && !asked_ && steady_seconds() >= next_look_) {
    use_requests_([&] { asked_ = requests_.take(); });
    next_look_ = steady_seconds() + kSecondsBetweenLooks;
  }
  StepWish wish{.stop = stop != nullptr && stop->requested() ? 1 : 0};
  if (asked_) {
    wish.command = asked_->command;
    wish.value = asked_->value;
  }
  return wish;
}

bool RunControl::is_stopped(const StopSignal* stop) {
  if (run_.mesh.world().size() == 1) {
    ask(stop);  // what has come since
  }
  wish_ = vote_.answer();
  return wish_.stop != 0;
}

RunControl::Verdict RunControl::verdict(const StopSignal* stop) {
  if (is_stopped(stop)) {
    return Verdict::kEnd;
  }
  return wish_.command == RunCommand::kNone ? Verdict::kGoOn : Verdict::kObey;
}

bool RunControl::obey(const StopSignal* stop) {
  const RunCommand command = wish_.command;
  if (command == RunCommand::kStop) {
    return false;  // the answer comes when all is saved
  }
  const RunAnswer answer = answer_of(wish_);
  if (run_.writes()) {
    reply(answer);
  }
  return command != RunCommand::kPause || pause(stop);
}

/// Holds still until it is told to go on, with everything in memory, and does meanwhile what else
/// is asked. False: the run shall end.
bool RunControl::pause(const StopSignal* stop) {
  do {
    run_.enter(Phase::kPaused, run_.state.step);
    std::this_thread::sleep_for(std::chrono::duration<double>(kSecondsBetweenLooks));
    ask(stop);
    if (is_stopped(stop) || wish_.command == RunCommand::kStop) {
      return false;
    }
    const bool is_other =
        wish_.command != RunCommand::kNone && wish_.command != RunCommand::kContinue;
    if (is_other) {
      const RunAnswer answer = answer_of(wish_);
      if (run_.writes()) {
        reply(answer);
      }
    }
  } while (wish_.command != RunCommand::kContinue);
  if (run_.writes()) {
    say_state(RunState::kTraining);
    reply({.text = "goes on from step " + std::to_string(run_.state.step)});
  }
  return true;
}

RunAnswer RunControl::answer_of(const StepWish& wish) {
  const std::string step = std::to_string(run_.state.step);
  switch (wish.command) {
    case RunCommand::kPause:
      if (run_.writes()) {
        say_state(RunState::kPaused);
      }
      return {.text = "paused after step " + step + "; kinora runs continue goes on"};
    case RunCommand::kSave:
      checkpoints_.save();
      checkpoints_.wait();
      return {.text = "saved step " + step};
    case RunCommand::kSample:
      if (const std::string fault = grids_.why_none(); !fault.empty()) {
        return {.done = false, .text = fault};
      }
      grids_.draw();
      return {.text = "drew samples/step-" + step};
    case RunCommand::kLearningRate: {
      std::ostringstream text;
      text << "lr.value was " << run_.config.lr.value << " and is now " << wish.value;
      run_.config.lr.value = wish.value;
      renew_config();
      return {.text = text.str()};
    }
    case RunCommand::kExtend: {
      const auto steps = static_cast<int64_t>(wish.value);
      if (steps <= run_.state.step) {
        return {.done = false, .text = "step " + step + " is done already"};
      }
      const std::string before = std::to_string(std::exchange(run_.config.train.steps, steps));
      renew_config();
      return {.text = "train.steps was " + before + " and is now " + std::to_string(steps)};
    }
    case RunCommand::kContinue:
      return {.done = false, .text = "the run is not paused"};
    case RunCommand::kStop:
    case RunCommand::kNone:
      break;
  }
  KINORA_UNREACHABLE("[train] command ", to_string(wish.command));
}

void RunControl::reply(RunAnswer answer) {
  answer.step = run_.state.step;
  log_info("[train] asked to ", to_string(asked_->command), ": ", answer.text);
  use_requests_([&] { requests_.reply(*asked_, answer); });
  asked_.reset();
}

/// To requests that came at the end.
void RunControl::reply_to_the_last() {
  const auto take = [this] {
    use_requests_([&] { asked_ = requests_.take(); });
    return asked_.has_value();
  };
  for (; asked_ || take(); asked_.reset()) {
    const bool done = asked_->command == RunCommand::kStop;
    const RunAnswer answer{
        .done = done,
        .step = run_.state.step,
        .text = (done ? "stopped, and saved as step " : "the run has ended at step ") +
                std::to_string(run_.state.step)};
    use_requests_([&] { requests_.reply(*asked_, answer); });
  }
}

/// For `kinora runs`.
void RunControl::say_state(RunState state) {
  said_ = state;
  write_state_of(state, "");
}

void RunControl::say_error(const std::string& why) {
  if (run_.writes()) {
    const bool has_ended = said_ == RunState::kStopped || said_ == RunState::kComplete;
    write_state_of(has_ended ? said_ : RunState::kDied, why);
  }
}

void RunControl::write_state_of(RunState state, const std::string& error) {
  write_state_([&] {
    write_state(run_.directory.path(), {.state = state,
                                        .step = run_.state.step,
                                        .steps = run_.config.train.steps,
                                        .device = device::describe(run_.device),
                                        .error = error});
  });
}

void RunControl::renew_config() {
  run_.renew_config();
  if (run_.writes()) {
    say_state(said_);
  }
}

void RunControl::say_why(const StopSignal* stop) const {
  if (run_.writes() && wish_.stop < kFirstRankVote) {
    log_info("[train] stopped at step ", run_.state.step, " by ",
             wish_.stop == 0     ? "a request"
             : stop->requested() ? stop->name()
                                 : "a signal to another rank",
             "; --resume auto goes on from there");
  }
}

void RunControl::end() {
  if (run_.writes()) {
    say_state(run_.is_complete() ? RunState::kComplete : RunState::kStopped);
    reply_to_the_last();
  }
  if (wish_.stop >= kFirstRankVote) {
    end_without_data();
  }
}

void RunControl::end_without_data() const {
  const int64_t rank = wish_.stop - kFirstRankVote;
  const int64_t step = run_.state.step;
  if (run_.writes()) {
    log_error("[train] ",
              run_.mesh.world().size() > 1 ? "rank " + std::to_string(rank) : "this run",
              " has no samples for step ", step + 1, "; step ", step,
              " is saved, and --resume auto goes on from there");
  }
  if (run_.samples->error() != nullptr) {
    std::rethrow_exception(run_.samples->error());
  }
  throw_error(ErrorKind::kComm, "[train] rank ", rank, " has no samples for step ", step + 1,
              ", and says why; step ", step, " is saved");
}

}  // namespace kinora::train
