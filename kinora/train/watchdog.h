#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/train/rank_status.h"

namespace kinora::train {

/// Exit codes by which a launcher knows a victim from a culprit.
inline constexpr int kPeerFailedCode = 6;  ///< another rank is to blame: that of ErrorKind::kComm
inline constexpr int kStalledCode = 9;     ///< this rank did not move, and held up the others

struct StallOptions {
  /// Without any progress, on any rank, for as long: a stall. The phases that take long by nature
  /// (start, checkpoint, validation, sampling, and all until the first step is finished, since
  /// kernels are chosen and graphs recorded in it) may take kLongPhases times as long. 0: no stall
  /// is ever noticed.
  double seconds = 600.0;

  /// The file that a batch is waited for, empty for none; asked by the watchdog's thread.
  std::function<std::string()> data_file;

  /// Ends the process with this code; the default leaves at once, without destructors, which could
  /// wait for what hangs. It is called by the watchdog's thread, as the one that would throw is
  /// stuck.
  std::function<void(int code)> end_process;
};
inline constexpr double kLongPhases = 6.0;

/// Watches, in a thread of its own on every rank, that training moves. What counts as movement: the
/// step, the phase, a finished step, a collective, another data file. Ranks show each other their
/// status at the store every two seconds or less.
///
/// When no rank has moved for its limit (a rank that is not heard of, being stopped or dead, cannot
/// object), the first to notice logs one table of all ranks and marks those that are behind; these
/// end with kStalledCode, the others with kPeerFailedCode. A rank that another one, or its
/// launcher, has reported as failed (comm::put_failure) brings the others down with kPeerFailedCode
/// within seconds, also where nothing else would tell them: a GPU that waits for a dead peer waits
/// for long.
class Watchdog {
 public:
  /// `world` is the group of all ranks; one rank is watched, too. kComm if the store is lost.
  Watchdog(const comm::Group& world, StallOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// This rank begins `phase` of `step` (from 1). Cheap; any thread, one at a time.
  void enter(Phase phase, int64_t step);

  /// `step` is finished on the device.
  void progress(int64_t step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::train
