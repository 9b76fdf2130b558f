#include "kinora/train/watchdog.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "kinora/comm/board.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"

namespace kinora::train {
namespace {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::duration<double>;

constexpr double kLongestPeriod = 2.0;    // seconds, between two looks
constexpr double kPeriodsInLimit = 8.0;   // looks before a stall, at least
constexpr double kSilentPeriods = 3.0;    // without a word, from a rank that should give one
constexpr double kShortestSilence = 3.0;  // seconds: a busy machine is not silent
constexpr const char* kVerdict = "stall/verdict";
constexpr const char* kReporter = "stall/reporter";
constexpr const char* kEnded = "ended";
constexpr std::chrono::seconds kFailureGrace{1};  // for the own error to come first

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return Duration(to - from).count();
}

std::string status_key(int64_t rank) {
  return "status/" + std::to_string(rank);
}

std::string describe(const comm::LastCall& call) {
  std::ostringstream text;
  text << comm::to_string(call.operation) << ' ' << call.sequence << " (" << call.group << "), "
       << human_bytes(call.bytes) << (call.done ? "" : ", under way");
  return text.str();
}

/// A rank's status as it was put up, and since when that is known here.
struct Seen {
  std::string text;
  Clock::time_point since;
};

}  // namespace

class Watchdog::Impl {
 public:
  Impl(const comm::Group& world, StallOptions options)
      : world_(world),
        options_(std::move(options)),
        period_(options_.seconds > 0.0
                    ? std::min(kLongestPeriod, options_.seconds / kPeriodsInLimit)
                    : kLongestPeriod) {
    if (!options_.end_process) {
      options_.end_process = [](int code) { std::_Exit(code); };
    }
    if (world.size() > 1) {
      board_.emplace(world.world());
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void enter(Phase phase, int64_t step) {
    step_.store(step, std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_relaxed);
    entered_.store(Clock::now(), std::memory_order_relaxed);
  }

  void progress(int64_t step) { finished_.store(step, std::memory_order_relaxed); }

 private:
  void run() {
    try {
      while (!sleep(Duration(period_))) {
        look();
      }
      if (board_) {
        board_->put(status_key(world_.rank()), kEnded);
      }
    } catch (const Error& error) {
      // Normal where the keeper of the store has ended well before this rank.
      log_debug("[watchdog] stalls are no longer noticed: ", error.what());
    }
  }

  /// Returns true if the end came first.
  bool sleep(Duration duration) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, duration, [this] { return stop_; });
  }

  void look() {
    const RankStatus own = own_status();
    if (board_) {
      // The number makes every text new, so that a rank that is not moving is still heard of.
      board_->put(status_key(world_.rank()), encode(own) + '\n' + std::to_string(++num_looks_));
      obey_verdict();  // first: a launcher reports the end of a rank that obeyed it as a failure
      obey_failure();
    }
    if (options_.seconds == 0.0 || own.unmoved < own.limit / 2) {
      seen_.clear();
      return;
    }
    std::optional<std::vector<RankStatus>> all = statuses(own);
    if (all && std::none_of(all->begin(), all->end(), may_still_move)) {
      report(*all);
    }
  }

  RankStatus own_status() {
    const Clock::time_point now = Clock::now();
    RankStatus status;
    status.rank = world_.rank();
    status.host = host_;
    status.step = step_.load(std::memory_order_relaxed);
    status.finished = finished_.load(std::memory_order_relaxed);
    status.phase = phase_.load(std::memory_order_relaxed);
    status.in_phase = seconds_between(entered_.load(std::memory_order_relaxed), now);
    status.limit = options_.seconds * (takes_long(status) ? kLongPhases : 1.0);
    if (const auto call = world_.last_call()) {
      status.num_calls = call->num_calls;
      status.collective = describe(*call);
    }
    if (status.phase == Phase::kData && options_.data_file) {
      status.data_file = options_.data_file();
    }
    const bool moved = status.step != last_.step || status.phase != last_.phase ||
                       status.finished != last_.finished || status.num_calls != last_.num_calls ||
                       status.data_file != last_.data_file;
    last_moved_ = moved ? now : last_moved_;
    status.unmoved = seconds_between(last_moved_, now);
    last_ = status;
    return status;
  }

  static bool takes_long(const RankStatus& status) {
    switch (status.phase) {
      case Phase::kData:
      case Phase::kForwardBackward:
      case Phase::kUpdate:
        return status.finished == 0;
      case Phase::kStart:
      case Phase::kCheckpoint:
      case Phase::kValidation:
      case Phase::kSampling:
      case Phase::kPaused:
        return true;
    }
    KINORA_UNREACHABLE("[watchdog] unknown phase");
  }

  /// Those of all ranks that have not ended well; none if one has not been awaited for long enough.
  std::optional<std::vector<RankStatus>> statuses(const RankStatus& own) {
    if (!board_) {
      return std::vector<RankStatus>{own};
    }
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      keys.push_back(status_key(rank));
    }
    const auto texts = board_->read_all(keys);
    const Clock::time_point now = Clock::now();
    seen_.resize(texts.size());
    std::vector<RankStatus> all;
    bool is_certain = true;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      const std::string text = texts[rank].value_or("");
      Seen& seen = seen_[rank];
      if (text == kEnded) {
        continue;
      }
      if (seen.text != text || seen.since == Clock::time_point()) {
        seen = {text, now};
      }
      RankStatus status = decode_status(text.substr(0, text.find('\n'))).value_or(RankStatus());
      status.rank = static_cast<int64_t>(rank);
      const double unheard = seconds_between(seen.since, now);
      status.silent =
          unheard >= std::max(kSilentPeriods * period_, kShortestSilence) ? unheard : 0.0;
      is_certain = is_certain && (!text.empty() || status.silent > 0.0);
      all.push_back(status);
    }
    return is_certain ? std::optional(all) : std::nullopt;
  }

  /// Logs the table unless another rank does, and ends.
  void report(const std::vector<RankStatus>& all) {
    const std::string own_rank = std::to_string(world_.rank());
    if (board_ && board_->put_first(kReporter, own_rank) != own_rank) {
      (void)sleep(Duration(period_));  // for the verdict, which the next look meets
      return;
    }
    const std::vector<size_t> behind = ranks_behind(all);
    log_error("[watchdog] nothing has moved for ", human_duration(last_.unmoved),
              ", the limit being ", human_duration(last_.limit), " (train.stall_timeout)\n",
              status_table(all, behind));
    std::string verdict = ",";
    for (const size_t index : behind) {
      verdict += std::to_string(all[index].rank) + ',';
    }
    if (board_) {
      board_->put(kVerdict, verdict);
      (void)sleep(
          Duration(2 * period_));  // the store may end with this process: others shall read it
    } else {
      verdict = ",0,";
    }
    end_by(verdict);
  }

  void obey_verdict() {
    if (const auto verdict = board_->read(kVerdict)) {
      log_error("[watchdog] nothing moves on any rank, as a table of another rank says");
      end_by(*verdict);
    }
  }

  /// `verdict` is ",2,3," if ranks 2 and 3 are behind.
  void end_by(const std::string& verdict) {
    const bool is_behind =
        verdict.find(',' + std::to_string(world_.rank()) + ',') != std::string::npos;
    end(is_behind ? kStalledCode : kPeerFailedCode);
  }

  void obey_failure() {
    if (const auto failure = comm::failure(*board_)) {
      if (!sleep(kFailureGrace)) {
        log_error("[watchdog] ", *failure, "; this rank ends with it");
        end(kPeerFailedCode);
      }
    }
  }

  void end(int code) {
    options_.end_process(code);
    // Only where a test lets the process live.
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }

  const comm::Group world_;
  StallOptions options_;
  const double period_;  // seconds
  const std::string host_ = comm::host_name();

  // Written by the training loop.
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> finished_{0};
  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<Clock::time_point> entered_{Clock::now()};

  // Of the thread.
  std::optional<comm::Board> board_;
  RankStatus last_;
  Clock::time_point last_moved_ = Clock::now();
  std::vector<Seen> seen_;  // by rank; empty while this rank moves
  int64_t num_looks_ = 0;

  std::mutex mutex_;  // of stop_
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

Watchdog::Watchdog(const comm::Group& world, StallOptions options)
    : impl_(std::make_unique<Impl>(world, std::move(options))) {}

Watchdog::~Watchdog() = default;

void Watchdog::enter(Phase phase, int64_t step) {
  impl_->enter(phase, step);
}

void Watchdog::progress(int64_t step) {
  impl_->progress(step);
}

}  // namespace kinora::train
