#include "kinora/core/launcher.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "kinora/core/child_process.h"
#include "kinora/core/error.h"
#include "kinora/core/free_port.h"
#include "kinora/core/line_relay.h"
#include "kinora/core/log.h"

namespace kinora {
namespace {

using Clock = std::chrono::steady_clock;
using Moment = std::optional<Clock::time_point>;

constexpr std::chrono::milliseconds kForceRanksAfter{1000};  // as in StopSignal
constexpr size_t kReadSize = 65536;

/// While it lives, the signals that a launcher handles are read from a descriptor.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t handled;
    ::sigemptyset(&handled);
    // A write to a reader that has gone raises SIGPIPE; here it is an error of the write only.
    for (const int signal : {SIGINT, SIGTERM, SIGWINCH, SIGPIPE}) {
      ::sigaddset(&handled, signal);
    }
    descriptor_ = OpenDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
    KINORA_CHECK(descriptor_.is_open(), kIo, "[launch] signalfd failed: ", std::strerror(errno));
    ::pthread_sigmask(SIG_BLOCK, &handled, &old_mask_);
    // Were it ignored, the kernel would keep the ends of children from us.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &old_child_action_);
  }

  ~SignalQueue() {
    while (next() != 0) {  // what has been handled must not act when unblocked
    }
    ::sigaction(SIGCHLD, &old_child_action_, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

  /// The next signal; 0: none now.
  [[nodiscard]] int next() const {
    signalfd_siginfo info{};
    return ::read(descriptor_.get(), &info, sizeof(info)) == sizeof(info)
               ? static_cast<int>(info.ssi_signo)
               : 0;
  }

 private:
  OpenDescriptor descriptor_;
  sigset_t old_mask_;
  struct sigaction old_child_action_;
};

/// This process's standard output and error: one sink if both are the same terminal, since an
/// unfinished line of one is in the way of the other.
class StandardSinks {
 public:
  StandardSinks() : output_(STDOUT_FILENO), error_(STDERR_FILENO) {
    struct stat output {};
    struct stat error {};
    is_one_ = output_.is_terminal() && error_.is_terminal() &&
              ::fstat(STDOUT_FILENO, &output) == 0 && ::fstat(STDERR_FILENO, &error) == 0 &&
              output.st_rdev == error.st_rdev;
  }

  OutputSink* output() { return is_one_ ? &error_ : &output_; }
  OutputSink* error() { return &error_; }

 private:
  OutputSink output_;
  OutputSink error_;
  bool is_one_;
};

/// A rank's standard output or error on its way to ours.
struct Stream {
  Stream(const std::string& prefix, OutputSink* sink, int ours)
      : relay(prefix, sink),
        channel(prefix.empty() && sink->is_terminal() ? open_pseudo_terminal(ours) : open_pipe()) {}

  /// Takes what is there, at most one read; closes at the end.
  void take() {
    std::array<char, kReadSize> bytes;
    const ssize_t size = ::read(channel.read_end.get(), bytes.data(), bytes.size());
    if (size > 0) {
      relay.feed({bytes.data(), static_cast<size_t>(size)});
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      finish();
    }
  }

  /// After the rank's end. The end of the stream is awaited only briefly, as a process that left
  /// the rank's group may hold the other end for good.
  void take_rest() {
    constexpr int kMaxReads = 64;
    constexpr int kPatience = 100;  // milliseconds
    pollfd ready{channel.read_end.get(), POLLIN, 0};
    for (int i = 0; i < kMaxReads && channel.read_end.is_open(); ++i) {
      if (::poll(&ready, 1, kPatience) == 0) {
        break;
      }
      take();
    }
    if (channel.read_end.is_open()) {
      finish();
    }
  }

  void finish() {
    relay.finish();
    channel.read_end.close();
  }

  LineRelay relay;
  OutputChannel channel;
};

struct Rank {
  Rank(int64_t rank, StandardSinks& sinks, const LaunchOptions& options,
       const std::vector<std::string>& variables)
      : output(prefix(rank), sinks.output(), STDOUT_FILENO),
        error(prefix(rank), sinks.error(), STDERR_FILENO),
        process(options.command, variables, output.channel.write_end, error.channel.write_end) {
    end.rank = rank;
    output.channel.write_end.close();
    error.channel.write_end.close();
  }

  static std::string prefix(int64_t rank) {
    return rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
  }

  Stream output;
  Stream error;
  ChildProcess process;
  RankEnd end;
};

/// One start of all ranks, until all have ended.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, int64_t restart, const SignalQueue& signals)
      : options_(options), restart_(restart), signals_(signals) {}

  /// Starts the ranks and waits for all that started. `stop_signal` takes a signal to this process,
  /// after which none is started.
  std::vector<RankEnd> run(StandardSinks& sinks, int& stop_signal) {
    start(sinks, stop_signal);
    while (ends_.size() < ranks_.size()) {
      wait_for_events(stop_signal);
      act_on_time();
    }
    handle_signals(stop_signal);  // it may have come just behind the ends that it caused
    std::vector<RankEnd> ends;
    for (Rank* rank : ends_) {
      rank->output.take_rest();
      rank->error.take_rest();
      rank->end.last_lines = rank->error.relay.last_lines();
      ends.push_back(rank->end);
    }
    return ends;
  }

  [[nodiscard]] int64_t num_not_started() const {
    return options_.num_ranks - static_cast<int64_t>(ranks_.size());
  }

 private:
  void start(StandardSinks& sinks, int& stop_signal) {
    const int64_t world = options_.world_size > 0 ? options_.world_size : options_.num_ranks;
    const int port = options_.master_port > 0 ? options_.master_port : free_port();
    for (int64_t i = 0; i < options_.num_ranks; ++i) {
      handle_signals(stop_signal);
      if (stop_signal != 0) {
        return;
      }
      const int64_t rank = options_.first_rank + i;
      std::vector<std::string> variables = {
          "RANK=" + std::to_string(rank),
          "LOCAL_RANK=" + std::to_string(i),
          "WORLD_SIZE=" + std::to_string(world),
          "LOCAL_WORLD_SIZE=" + std::to_string(options_.num_ranks),
          "MASTER_ADDR=" + options_.master_address,
          "MASTER_PORT=" + std::to_string(port),
          "KINORA_RESTART=" + std::to_string(restart_)};
      variables.insert(variables.end(), options_.environment.begin(), options_.environment.end());
      ranks_.push_back(std::make_unique<Rank>(rank, sinks, options_, variables));
    }
  }

  void wait_for_events(int& stop_signal) {
    enum class Source { kSignal, kEnd, kOutput, kError };
    std::vector<pollfd> polled = {{signals_.descriptor(), POLLIN, 0}};
    std::vector<std::pair<Source, Rank*>> sources = {{Source::kSignal, nullptr}};
    const auto add = [&](int descriptor, Source source, Rank* rank) {
      if (descriptor >= 0) {
        polled.push_back({descriptor, POLLIN, 0});
        sources.emplace_back(source, rank);
      }
    };
    for (const auto& rank : ranks_) {
      add(rank->process.descriptor(), Source::kEnd, rank.get());
      add(rank->output.channel.read_end.get(), Source::kOutput, rank.get());
      add(rank->error.channel.read_end.get(), Source::kError, rank.get());
    }
    if (::poll(polled.data(), polled.size(), milliseconds_to_wait()) <= 0) {
      return;  // a moment has come, or a signal that we do not handle
    }
    handle_signals(stop_signal);  // before the ends, which may be its work
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) {
        continue;
      }
      Rank* rank = sources[i].second;
      if (sources[i].first == Source::kEnd) {
        note_end(rank);
      } else {
        (sources[i].first == Source::kOutput ? rank->output : rank->error).take();
      }
    }
  }

  /// For poll: until the next moment, rounded up so that it does not wake too early; -1: no limit.
  [[nodiscard]] int milliseconds_to_wait() const {
    Moment next = settled_;
    if (kill_ && (!next || *kill_ < *next)) {
      next = kill_;
    }
    if (!next) {
      return -1;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
    return static_cast<int>(std::max<int64_t>(left.count(), 0));
  }

  void note_end(Rank* rank) {
    const ProcessEnd end = rank->process.reap();
    rank->end.exit_code = end.exit_code;
    rank->end.signal = end.signal;
    ends_.push_back(rank);
    if (!has_failure_ && rank_to_blame({rank->end}, options_.peer_failure_code) != nullptr) {
      has_failure_ = true;
      settled_ = Clock::now() + options_.settle;
      kill_by(Clock::now() + options_.failure_grace);
      if (options_.on_failure) {
        options_.on_failure(restart_, rank->end);
      }
    }
  }

  void handle_signals(int& stop_signal) {
    for (int signal = signals_.next(); signal != 0; signal = signals_.next()) {
      handle(signal, stop_signal);
    }
  }

  void handle(int signal, int& stop_signal) {
    const Clock::time_point now = Clock::now();
    if (signal == SIGWINCH) {
      for (const auto& rank : ranks_) {
        copy_terminal_size(STDOUT_FILENO, rank->output.channel.read_end);
        copy_terminal_size(STDERR_FILENO, rank->error.channel.read_end);
      }
    } else if ((signal == SIGINT || signal == SIGTERM) && stop_signal == 0) {
      stop_signal = signal;
      stopped_ = now;
      forgive_ends_by(signal);
      tell(signal);
      // Ranks that lack some of the others have not computed anything that they could save.
      kill_by(now + (num_not_started() > 0 ? options_.failure_grace : options_.stop_grace));
    } else if (signal == SIGINT && now - stopped_ >= kForceRanksAfter) {
      kill_by(now);
    }
  }

  /// A job scheduler signals all processes of a job, and a rank may obey before we hear of it.
  void forgive_ends_by(int signal) {
    bool is_any_to_blame = false;
    for (Rank* rank : ends_) {
      RankEnd as_told = rank->end;
      as_told.told = signal;
      if (rank->end.told == 0 && rank_to_blame({as_told}, options_.peer_failure_code) == nullptr) {
        rank->end = as_told;
      }
      is_any_to_blame =
          is_any_to_blame || rank_to_blame({rank->end}, options_.peer_failure_code) != nullptr;
    }
    if (!is_any_to_blame) {
      has_failure_ = false;
      settled_.reset();
      kill_.reset();
    }
  }

  void act_on_time() {
    const Clock::time_point now = Clock::now();
    if (settled_ && now >= *settled_) {
      settled_.reset();
      tell(SIGTERM);
    }
    if (kill_ && now >= *kill_) {
      kill_.reset();
      tell(SIGKILL);
    }
  }

  void tell(int signal) {
    for (const auto& rank : ranks_) {
      if (rank->process.is_running()) {
        rank->end.told = signal;
        rank->process.send(signal);
      }
    }
  }

  void kill_by(Clock::time_point moment) { kill_ = kill_ ? std::min(*kill_, moment) : moment; }

  const LaunchOptions& options_;
  const int64_t restart_;
  const SignalQueue& signals_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Rank*> ends_;  // in order
  bool has_failure_ = false;
  Moment settled_;  // when to send SIGTERM
  Moment kill_;     // when to send SIGKILL
  Clock::time_point stopped_;
};

void check(const LaunchOptions& options) {
  KINORA_CHECK(options.num_ranks > 0, kConfig,
               "[launch] the number of ranks must be positive, got ", options.num_ranks);
  const int64_t end = options.first_rank + options.num_ranks;
  KINORA_CHECK(options.first_rank >= 0 && (options.world_size == 0 || end <= options.world_size),
               kConfig, "[launch] ranks ", options.first_rank, " to ", end - 1,
               " must lie in a world of ", options.world_size);
  KINORA_CHECK(options.master_port > 0 || options.world_size <= options.num_ranks, kConfig,
               "[launch] ranks on several machines need a port that all know, got 0");
}

}  // namespace

LaunchResult launch_ranks(const LaunchOptions& options) {
  check(options);
  StandardSinks sinks;
  const SignalQueue signals;
  LaunchResult result;
  int64_t failures = 0;  // that ranks started again after
  while (true) {
    // The ranks of an attempt are gone with it before the next one starts.
    Attempt attempt(options, result.num_restarts, signals);
    result.ends = attempt.run(sinks, result.stop_signal);
    result.num_not_started = attempt.num_not_started();
    const RankEnd* blamed = rank_to_blame(result.ends, options.peer_failure_code);
    result.failure = blamed != nullptr ? std::optional(*blamed) : std::nullopt;
    sinks.output()->start_line();
    sinks.error()->start_line();
    if (!result.failure) {
      return result;
    }
    log_error("[launch] ", describe_failure(result));
    const auto ended_by_one_of = [blamed](const std::vector<int>& codes) {
      return blamed->signal == 0 &&
             std::find(codes.begin(), codes.end(), blamed->exit_code) != codes.end();
    };
    const bool is_wanted = ended_by_one_of(options.again_codes);
    const bool is_final =
        ended_by_one_of(options.final_codes) || (!is_wanted && failures == options.max_restarts);
    if (is_final || result.stop_signal != 0) {
      return result;
    }
    ++result.num_restarts;
    if (is_wanted) {
      log_warn("[launch] all ranks start again, as rank ", blamed->rank, " wants");
    } else {
      ++failures;
      log_warn("[launch] all ranks start again: restart ", failures, " of ", options.max_restarts);
    }
  }
}

}  // namespace kinora
