#include "kinora/core/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>

#include "kinora/core/error.h"

namespace kinora {
namespace {

// A signal handler can reach nothing but globals; lock-free atomics are safe in one.
std::atomic<bool> g_alive{false};
std::atomic<int> g_signal{0};
std::atomic<int64_t> g_first_interrupt{0};  // milliseconds; 0: none
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

constexpr int64_t kForceAfter = 1000;  // milliseconds

int64_t monotonic_milliseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);  // async-signal-safe by POSIX
  return static_cast<int64_t>(time.tv_sec) * 1000 + time.tv_nsec / 1000000 + 1;
}

extern "C" void kinora_remember_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  g_signal.compare_exchange_strong(none, signal);
  if (signal == SIGINT) {
    const int64_t now = monotonic_milliseconds();
    int64_t first = 0;
    if (!g_first_interrupt.compare_exchange_strong(first, now) && now - first >= kForceAfter) {
      ::signal(SIGINT, SIG_DFL);
      ::raise(SIGINT);  // acts when the handler returns
    }
  }
  errno = saved_errno;
}

}  // namespace

StopSignal::StopSignal() {
  KINORA_CHECK(!g_alive.exchange(true), kInternal, "[stop_signal] only one may live at a time");
  g_signal = 0;
  g_first_interrupt = 0;
  struct sigaction action {};
  action.sa_handler = kinora_remember_signal;
  action.sa_flags = SA_RESTART;  // reads and writes under way go on
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
}

StopSignal::~StopSignal() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
  g_alive = false;
}

int StopSignal::signal() const {
  return g_signal;
}

std::string_view StopSignal::name() const {
  const int which = signal();
  return which == SIGINT ? "SIGINT" : which == SIGTERM ? "SIGTERM" : "";
}

}  // namespace kinora
