#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Runs one command as several ranks on this machine and brings all of them to an end together.
namespace kinora {

/// How a rank ended.
struct RankEnd {
  int64_t rank = 0;
  int exit_code = 0;
  int signal = 0;          ///< that killed it; 0: it exited
  int told = 0;            ///< the last signal that the launcher had sent to it; 0: none
  std::string last_lines;  ///< of its standard error, at most 20
};

struct LaunchOptions {
  std::vector<std::string> command;  ///< argv; [0] is sought in PATH
  int64_t num_ranks = 1;             ///< here
  int64_t first_rank = 0;            ///< of those here, where there are several machines
  int64_t world_size = 0;            ///< ranks on all machines; 0: those here
  std::string master_address = "127.0.0.1";
  int master_port = 0;                   ///< 0: a free one, another at each restart
  std::vector<std::string> environment;  ///< "NAME=value" for every rank, over this process's
  int64_t max_restarts = 0;              ///< how often all start again after a failure

  /// Exit codes of the rank to blame after which another start would fail in the same way.
  std::vector<int> final_codes;
  /// Those after which all start again, without counting as restarts of max_restarts.
  std::vector<int> again_codes;

  /// Called at the first failure of the start `restart` (0, 1, ...), while other ranks run: to tell
  /// those on other machines. It must be quick, and must not throw.
  std::function<void(int64_t restart, const RankEnd& end)> on_failure;

  /// The exit code by which a rank says that another rank failed it.
  std::optional<int> peer_failure_code;

  /// How long to wait, after the first failure, for a rank with a better claim to be the cause.
  std::chrono::milliseconds settle{500};
  /// From the first failure to SIGKILL: what a rank and its driver need to vanish is left of 10 s.
  std::chrono::milliseconds failure_grace{8000};
  /// From a signal to this process to SIGKILL, likewise; more where ranks write a checkpoint first.
  /// While ranks are still being started it is `failure_grace`.
  std::chrono::milliseconds stop_grace{8000};
};

struct LaunchResult {
  std::vector<RankEnd> ends;       ///< of the last start, in the order in which the ranks ended
  std::optional<RankEnd> failure;  ///< the rank to blame; none: all went well, or were stopped
  int stop_signal = 0;             ///< SIGINT or SIGTERM, if this process got one
  int64_t num_not_started = 0;     ///< ranks that the signal came before
  int64_t num_restarts = 0;
};

/// Runs the ranks until all have ended. Each gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT and KINORA_RESTART (0, 1, ...), an empty standard input, and a process
/// group of its own; what is left of the group when the rank ends is killed.
///
/// Output: rank 0's passes through unchanged, by a pseudo-terminal where this process has a
/// terminal, so that its progress bar works; lines of the others come as "[rank 2] ...".
///
/// Failure: a rank exits with another code than 0, or a signal kills it. After `settle` the others
/// get SIGTERM, and SIGKILL `failure_grace` after the failure. Blamed is the first of the best
/// class that occurs, by time of death:
///   1. killed by SIGKILL, SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGSYS, untold. Such a rank cannot
///      fail because of another, while others, whose connections break, may be quicker to die (a
///      kernel closes sockets long before it has written a core file);
///   2. ended otherwise (SIGABRT too: an exception nobody caught), untold;
///   3. after a signal from the launcher, but with an error of its own: not by that signal, nor
///      with the code 128 + signal; such a rank may have been slow to die of what broke the others;
///   4. ended with `peer_failure_code`, untold.
/// The failure is logged after all have ended, so that it is the last to be read.
///
/// Stop: a first SIGINT or SIGTERM to this process goes to all ranks, and SIGKILL `stop_grace`
/// later; a further SIGINT, a second or more after the first, kills at once. No rank is started
/// after it, and there is no restart.
/// Ranks that the same signal, or the end of a peer by it, ended just before are not to blame.
///
/// If this process dies, whatever the way, its ranks are killed; processes that they started are
/// not. A chosen port is free when it is chosen; another program can take it before rank 0 does.
///
/// A reader of our output that stalls for long stalls this too.
///
/// Call it before other threads start, or start them under a SignalBlock: signals must reach nobody
/// else. kConfig: options that cannot
/// be, or a command that cannot be run; kIo: the system refuses processes or descriptors.
[[nodiscard]] LaunchResult launch_ranks(const LaunchOptions& options);

/// The rank to blame as above; null: none failed. `ends` by time of death.
[[nodiscard]] const RankEnd* rank_to_blame(const std::vector<RankEnd>& ends,
                                           std::optional<int> peer_failure_code);

/// For people: "rank 2 failed first: exit code 3", its last lines, then what became of the others.
[[nodiscard]] std::string describe_failure(const LaunchResult& result);

/// For people: "exit code 3" or "killed by SIGKILL".
[[nodiscard]] std::string describe_end(const RankEnd& end);

/// What this process should exit with: the code of the rank to blame, or 128 + its signal; 0 if
/// all ranks were started and exited with 0; else 128 + the signal that stopped them.
[[nodiscard]] int exit_status(const LaunchResult& result);

}  // namespace kinora
