// Who is to blame, and how to say it: the parts of launcher.h that start nothing.

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>

#include "kinora/core/launcher.h"

namespace kinora {
namespace {

constexpr int kShellSignalBase = 128;  // a shell exits with 128 + the signal that ended its command

/// Signals by which a process dies of its own doing or by the kernel's, and not of a peer's end.
bool is_crash(int signal) {
  constexpr int kCrashes[] = {SIGKILL, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
  return std::find(std::begin(kCrashes), std::end(kCrashes), signal) != std::end(kCrashes);
}

/// Whether the rank ended as it does when it is asked to.
bool did_as_told(const RankEnd& end) {
  const int signal = end.signal != 0 ? end.signal : end.exit_code - kShellSignalBase;
  // One may have been followed by the next before the rank could act on it.
  return signal == end.told || signal == SIGTERM || signal == SIGINT;
}

constexpr int kNotToBlame = 5;

/// The classes of launcher.h, 1 the best.
int blame_class(const RankEnd& end, std::optional<int> peer_failure_code) {
  if (end.exit_code == 0 && end.signal == 0) {
    return kNotToBlame;
  }
  const bool is_peer_failure = end.signal == 0 && end.exit_code == peer_failure_code;
  if (end.told != 0) {
    return is_peer_failure || did_as_told(end) ? kNotToBlame : 3;
  }
  return is_peer_failure ? 4 : is_crash(end.signal) ? 1 : 2;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

/// What became of a rank that is not to blame.
std::string aftermath(const RankEnd& end) {
  std::string text = "rank " + std::to_string(end.rank) + ": " + describe_end(end);
  if (end.told != 0) {
    text += end.signal == end.told ? " from the launcher" : " after " + signal_name(end.told);
  }
  return text;
}

}  // namespace

std::string describe_end(const RankEnd& end) {
  if (end.signal == 0) {
    return "exit code " + std::to_string(end.exit_code);
  }
  return "killed by " + signal_name(end.signal);
}

const RankEnd* rank_to_blame(const std::vector<RankEnd>& ends,
                             std::optional<int> peer_failure_code) {
  const RankEnd* blamed = nullptr;
  int best = kNotToBlame;
  for (const RankEnd& end : ends) {
    const int its = blame_class(end, peer_failure_code);
    if (its < best) {
      best = its;
      blamed = &end;
    }
  }
  return blamed;
}

std::string describe_failure(const LaunchResult& result) {
  if (!result.failure) {
    return {};
  }
  const RankEnd& failure = *result.failure;
  std::string text =
      "rank " + std::to_string(failure.rank) + " failed first: " + describe_end(failure);
  if (failure.signal == SIGKILL) {
    text += ". Hint: often the system's memory was full; the kernel's log tells";
  }
  if (!failure.last_lines.empty()) {
    text += "\nlast lines of its standard error:\n" + failure.last_lines;
  }
  std::string others;
  for (const RankEnd& end : result.ends) {
    if (end.rank != failure.rank) {
      others += (others.empty() ? "\nthen " : "; ") + aftermath(end);
    }
  }
  return text + others;
}

int exit_status(const LaunchResult& result) {
  if (result.failure) {
    return result.failure->signal != 0 ? kShellSignalBase + result.failure->signal
                                       : result.failure->exit_code;
  }
  const bool all_succeeded =
      result.num_not_started == 0 &&
      std::all_of(result.ends.begin(), result.ends.end(),
                  [](const RankEnd& end) { return end.exit_code == 0 && end.signal == 0; });
  return all_succeeded ? 0 : kShellSignalBase + result.stop_signal;
}

}  // namespace kinora
