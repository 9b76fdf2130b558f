#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "kinora/core/console.h"

namespace kinora {

/// Where progress is shown, and the time; the defaults are for programs, others for tests.
struct ProgressOptions {
  Console* console = &Console::standard_error();  ///< borrowed
  std::function<double()> clock;  ///< seconds from any origin, never backwards; empty: steady clock
  double plain_interval = 10.0;   ///< seconds between plain lines
};

/// The progress of long work: how far, how fast, how long still. On a terminal one line with a bar,
/// redrawn at most ten times a second; elsewhere plain lines: the first, the last, and at most one
/// per interval. Rate and remaining time come from the last minute (or the last ten updates, if
/// those took longer), without the first three updates, which include warm-up. Belongs to one
/// thread.
class Progress {
 public:
  /// `total` units are done at the end (0: unknown); `start` of them were done before, by a run
  /// that is resumed. `unit` is a plural: "steps".
  Progress(int64_t total, std::string unit, int64_t start = 0, ProgressOptions options = {});

  /// Calls finish.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` units are done, counted with `start`; of a fraction only the bar and the rate know.
  /// `suffix` is shown at the end: "loss 0.123".
  void update(double done, std::string_view suffix = {});

  /// The end has moved. Shown from the next update on.
  void set_total(int64_t total) { total_ = total; }

  /// Replaces the bar by a last line with the whole time, unless nothing was ever updated. Later
  /// calls do nothing.
  void finish();

 private:
  struct Sample {
    double time;
    double done;
  };

  [[nodiscard]] double now() const;
  void remember(double time);
  [[nodiscard]] std::string count() const;
  [[nodiscard]] std::string line(int columns) const;
  void show(double time);

  int64_t total_;
  const std::string unit_;
  const int64_t start_;
  const ProgressOptions options_;
  const double start_time_;
  double done_;
  std::string suffix_;
  int64_t num_updates_ = 0;
  std::deque<Sample> window_;
  double last_shown_;  // minus infinity: never
  bool finished_ = false;
};

}  // namespace kinora
