#pragma once

#include <csignal>
#include <string_view>

namespace kinora {

/// While it lives, SIGINT (Ctrl-C) and SIGTERM do not end the process but are remembered, so that
/// long work can save and stop at a good moment. A second SIGINT, a second or more after the first,
/// ends it at once (sooner ones are often copies, sent by the terminal and by a launcher). At most
/// one lives at a time.
class StopSignal {
 public:
  /// Installs the handlers; kInternal if another StopSignal lives.
  StopSignal();

  /// Restores what was there before.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Whether a signal has arrived.
  [[nodiscard]] bool requested() const { return signal() != 0; }

  /// The first signal that arrived: SIGINT or SIGTERM; 0: none yet.
  [[nodiscard]] int signal() const;

  /// "SIGINT", "SIGTERM" or "".
  [[nodiscard]] std::string_view name() const;

 private:
  struct sigaction old_interrupt_;
  struct sigaction old_terminate_;
};

}  // namespace kinora
