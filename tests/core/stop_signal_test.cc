#include "kinora/core/stop_signal.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "kinora/core/error.h"

namespace kinora {
namespace stop_signal_test {

TEST(StopSignalTest, RemembersTheFirstSignal) {
  const StopSignal stop;
  EXPECT_FALSE(stop.requested());
  EXPECT_EQ(stop.name(), "");
  ::raise(SIGTERM);
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop.signal(), SIGTERM);
  EXPECT_EQ(stop.name(), "SIGTERM");
  ::raise(SIGINT);
  EXPECT_EQ(stop.signal(), SIGTERM);
}

TEST(StopSignalTest, StartsAnewEachTime) {
  {
    const StopSignal stop;
    ::raise(SIGINT);
    EXPECT_EQ(stop.name(), "SIGINT");
  }
  const StopSignal stop;
  EXPECT_FALSE(stop.requested());
}

TEST(StopSignalTest, OnlyOneLivesAtATime) {
  const StopSignal stop;
  EXPECT_THROW(StopSignal second, Error);
}

TEST(StopSignalTest, RestoresWhatWasThere) {
  static volatile std::sig_atomic_t called = 0;
  const auto previous = std::signal(SIGINT, [](int) { called = 1; });
  {
    const StopSignal stop;
    ::raise(SIGINT);
    EXPECT_EQ(called, 0);
  }
  ::raise(SIGINT);
  EXPECT_EQ(called, 1);
  std::signal(SIGINT, previous);
}

/// Runs `child` in another process; its wait status.
template <typename Child>
int status_of(Child child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    child();
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

TEST(StopSignalTest, SecondInterruptAfterASecondEndsTheProcess) {
  const int status = status_of([] {
    const StopSignal stop;
    ::raise(SIGINT);
    ::usleep(1100 * 1000);
    ::raise(SIGINT);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(StopSignalTest, CopiesOfOneInterruptAndRepeatedTermDoNot) {
  const int status = status_of([] {
    const StopSignal stop;
    ::raise(SIGINT);
    ::raise(SIGINT);
    ::usleep(1100 * 1000);
    ::raise(SIGTERM);
    ::raise(SIGTERM);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace stop_signal_test
}  // namespace kinora
