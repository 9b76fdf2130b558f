#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

/// Processes started by this one, for a launcher.
namespace kinora {

/// An open file descriptor, closed at the end; -1: none.
class OpenDescriptor {
 public:
  OpenDescriptor() = default;
  explicit OpenDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~OpenDescriptor() { close(); }
  OpenDescriptor(OpenDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenDescriptor& operator=(OpenDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_ = -1;
};

/// A way for bytes from a child (`write_end`) to this process (`read_end`, which never blocks).
struct OutputChannel {
  OpenDescriptor read_end;
  OpenDescriptor write_end;
};

/// A pipe; kIo if it cannot be had.
[[nodiscard]] OutputChannel open_pipe();

/// A pseudo-terminal of the size of the terminal `like`, so that the child draws as if on that one;
/// its bytes come unchanged. A read fails with EIO at its end. kIo if it cannot be had.
[[nodiscard]] OutputChannel open_pseudo_terminal(int like);

/// Gives a pseudo-terminal the size that the terminal `like` has now.
void copy_terminal_size(int like, const OpenDescriptor& pseudo_terminal);

/// How a process ended.
struct ProcessEnd {
  int exit_code = 0;
  int signal = 0;  ///< that killed it; 0: it exited
};

/// A running child process, in a process group of its own, with the standard input empty and no
/// signal blocked. It dies, by SIGKILL from the kernel, when the thread that started it ends,
/// however that happens; processes that it started itself do not.
class ChildProcess {
 public:
  /// Runs `command` ([0] is sought in PATH) with `variables` ("NAME=value") over this process's
  /// environment. kConfig if it cannot be run; kIo if there can be no more processes.
  ChildProcess(const std::vector<std::string>& command, const std::vector<std::string>& variables,
               const OpenDescriptor& standard_output, const OpenDescriptor& standard_error);

  /// Kills it and its group if it has not been reaped, and waits for its end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Readable (poll) once the process has ended.
  [[nodiscard]] int descriptor() const { return end_.get(); }

  [[nodiscard]] bool is_running() const { return pid_ > 0; }

  /// Sends a signal to the process and all in its group. Only while it is running.
  void send(int signal) const;

  /// Returns how it ended, after a kill of what is left of its group: of itself too, if it still
  /// runs. Once.
  ProcessEnd reap();

 private:
  pid_t pid_ = -1;      // -1: reaped
  OpenDescriptor end_;  // a pidfd
};

}  // namespace kinora
