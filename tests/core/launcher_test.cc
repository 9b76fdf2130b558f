#include "kinora/core/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora {
namespace launcher_test {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Far more than a loaded machine needs; what takes as long has failed.
constexpr int kPatience = 20000;  // milliseconds

LaunchOptions shell(int64_t num_ranks, const std::string& script) {
  LaunchOptions options;
  options.command = {"sh", "-c", script};
  options.num_ranks = num_ranks;
  options.settle = milliseconds(20);
  options.failure_grace = milliseconds(kPatience);
  return options;
}

struct Launched {
  LaunchResult result;
  std::string out;
  std::string err;
};

Launched launch(const LaunchOptions& options) {
  Launched launched;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  launched.result = launch_ranks(options);
  launched.out = testing::internal::GetCapturedStdout();
  launched.err = testing::internal::GetCapturedStderr();
  return launched;
}

/// A named pipe by which one rank waits for another: the reader's open waits for the writer's.
class Fifo {
 public:
  Fifo() {
    std::string folder = (std::filesystem::temp_directory_path() / "kinora-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    EXPECT_EQ(::mkfifo(path().c_str(), 0600), 0);
  }
  ~Fifo() { std::filesystem::remove_all(folder_); }
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;

  [[nodiscard]] std::string path() const { return (folder_ / "fifo").string(); }

  /// Lets the reader go on, once there is one.
  void let_go() const {
    const int writer = ::open(path().c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(::write(writer, "\n", 1), 1);
    ::close(writer);
  }

 private:
  std::filesystem::path folder_;
};

/// A pipe whose other end every process started from here holds: it ends when all have gone.
class Witness {
 public:
  Witness() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~Witness() {
    ::close(ends_[0]);
    release();
  }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  bool all_gone() {
    release();
    pollfd ready{ends_[0], POLLIN, 0};
    char byte = 0;
    return ::poll(&ready, 1, kPatience) == 1 && ::read(ends_[0], &byte, 1) == 0;
  }

 private:
  void release() {
    if (ends_[1] >= 0) {
      ::close(ends_[1]);
      ends_[1] = -1;
    }
  }

  std::array<int, 2> ends_{};
};

int64_t num_open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return std::distance(begin(entries), end(entries));
}

TEST(LauncherTest, AllSucceedAndNothingIsLeft) {
  const int64_t before = num_open_descriptors();
  const Launched launched = launch(shell(4, "exit 0"));
  EXPECT_FALSE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.ends.size(), 4U);
  EXPECT_EQ(launched.result.num_restarts, 0);
  EXPECT_EQ(exit_status(launched.result), 0);
  EXPECT_EQ(describe_failure(launched.result), "");
  EXPECT_EQ(launched.out, "");
  EXPECT_EQ(launched.err, "");
  EXPECT_EQ(num_open_descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(LauncherTest, GivesEachRankItsVariablesAndAnEmptyInput) {
  LaunchOptions options = shell(2,
                                "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE "
                                "$MASTER_ADDR $MASTER_PORT $KINORA_RESTART $EXTRA $HOME; cat");
  options.first_rank = 2;
  options.world_size = 6;
  options.master_address = "node0";
  options.master_port = 1234;
  options.environment = {"EXTRA=a=b", "HOME=/nowhere"};
  const std::string out = launch(options).out;
  EXPECT_THAT(out, HasSubstr("[rank 2] 2 0 6 2 node0 1234 0 a=b /nowhere\n"));
  EXPECT_THAT(out, HasSubstr("[rank 3] 3 1 6 2 node0 1234 0 a=b /nowhere\n"));
}

TEST(LauncherTest, ChoosesOnePortForAll) {
  const std::string out = launch(shell(2, "echo $MASTER_ADDR $MASTER_PORT")).out;
  std::set<std::string> ports;
  for (const std::string_view line : split(trim(out), '\n')) {
    ports.emplace(line.substr(line.find("127.0.0.1 ")));
  }
  ASSERT_EQ(ports.size(), 1U) << out;
  EXPECT_GT(std::stoi(ports.begin()->substr(10)), 0);
}

TEST(LauncherTest, AFailureBringsAllDownAndIsToldLast) {
  Witness witness;
  const Launched launched = launch(shell(3,
                                         "[ $RANK = 1 ] || exec sleep 1000\n"
                                         "echo early >&2; printf 'disk full' >&2; exit 3"));
  EXPECT_TRUE(witness.all_gone());
  ASSERT_TRUE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.failure->rank, 1);
  EXPECT_EQ(launched.result.failure->exit_code, 3);
  EXPECT_EQ(launched.result.failure->signal, 0);
  EXPECT_EQ(launched.result.failure->last_lines, "early\ndisk full");
  EXPECT_EQ(exit_status(launched.result), 3);
  EXPECT_THAT(launched.err, StartsWith("[rank 1] early\n[rank 1] disk full\n"));
  EXPECT_THAT(launched.err, HasSubstr(" error: [launch] rank 1 failed first: exit code 3\n"));
  EXPECT_THAT(launched.err, HasSubstr("rank 0: killed by SIGTERM from the launcher"));
  EXPECT_THAT(launched.err, HasSubstr("rank 2: killed by SIGTERM from the launcher"));
}

TEST(LauncherTest, ASignalIsAFailure) {
  Witness witness;
  const Launched launched = launch(shell(2, "[ $RANK = 0 ] && kill -KILL $$; exec sleep 1000"));
  EXPECT_TRUE(witness.all_gone());
  ASSERT_TRUE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.failure->rank, 0);
  EXPECT_EQ(launched.result.failure->signal, SIGKILL);
  EXPECT_EQ(exit_status(launched.result), 128 + SIGKILL);
  EXPECT_THAT(launched.err, HasSubstr("rank 0 failed first: killed by SIGKILL. Hint: "));
}

TEST(LauncherTest, WhatIgnoresSigtermIsKilled) {
  Witness witness;
  const Fifo fifo;
  LaunchOptions options = shell(2, "if [ $RANK = 1 ]; then read x < " + fifo.path() +
                                       "; exit 4; fi\n"
                                       "trap '' TERM; echo > " +
                                       fifo.path() + "; sleep 1000; sleep 1000");
  options.failure_grace = milliseconds(200);
  const Launched launched = launch(options);
  EXPECT_TRUE(witness.all_gone());
  ASSERT_TRUE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.failure->rank, 1);
  EXPECT_EQ(launched.result.ends[1].signal, SIGKILL);
  EXPECT_EQ(launched.result.ends[1].told, SIGKILL);
}

TEST(LauncherTest, TheGroupOfARankEndsWithIt) {
  Witness witness;
  const Launched launched = launch(shell(2, "sleep 1000 & exit 0"));
  EXPECT_TRUE(witness.all_gone());
  EXPECT_EQ(exit_status(launched.result), 0);
}

TEST(LauncherTest, ASlowRankWithItsOwnErrorIsBlamedBeforeItsPeers) {
  const Fifo fifo;
  // Rank 0 notices that its peer is in trouble, and ends before it.
  LaunchOptions options = shell(2, "if [ $RANK = 0 ]; then read x < " + fifo.path() +
                                       "; exit 6; fi\n"
                                       "trap 'exit 3' TERM; sleep 1000 & echo > " +
                                       fifo.path() + "; wait");
  options.peer_failure_code = 6;
  const LaunchResult result = launch(options).result;
  ASSERT_TRUE(result.failure.has_value());
  EXPECT_EQ(result.failure->rank, 1);
  EXPECT_EQ(result.failure->exit_code, 3);
}

RankEnd exited(int64_t rank, int code, int told = 0) {
  return {rank, code, 0, told, ""};
}

RankEnd killed(int64_t rank, int signal, int told = 0) {
  return {rank, 0, signal, told, ""};
}

/// -1: none.
int64_t blamed(const std::vector<RankEnd>& ends) {
  const RankEnd* end = rank_to_blame(ends, 6);
  return end == nullptr ? -1 : end->rank;
}

TEST(LauncherTest, BlamesByClassThenTime) {
  EXPECT_EQ(blamed({}), -1);
  EXPECT_EQ(blamed({exited(0, 0), exited(1, 0)}), -1);
  EXPECT_EQ(blamed({exited(0, 0), exited(2, 1), exited(1, 1)}), 2);
  EXPECT_EQ(blamed({exited(0, 1), killed(1, SIGSEGV), killed(2, SIGBUS)}), 1);
  EXPECT_EQ(blamed({exited(0, 1), killed(1, SIGABRT)}), 0);
  EXPECT_EQ(blamed({exited(0, 6), exited(1, 6)}), 0);
  EXPECT_EQ(blamed({exited(0, 6), exited(1, 1)}), 1);
  EXPECT_EQ(blamed({exited(0, 6), exited(1, 3, SIGTERM)}), 1);
  EXPECT_EQ(blamed({exited(0, 1), exited(1, 3, SIGTERM)}), 0);
  EXPECT_EQ(blamed({exited(0, 6), killed(1, SIGTERM, SIGTERM), exited(2, 143, SIGTERM),
                    killed(3, SIGKILL, SIGKILL), killed(4, SIGTERM, SIGKILL)}),
            0);
  EXPECT_EQ(blamed({killed(1, SIGINT, SIGINT), exited(0, 6, SIGINT), exited(2, 130, SIGINT)}), -1);
  EXPECT_EQ(blamed({killed(1, SIGINT, SIGINT), exited(0, 4, SIGINT)}), 0);
}

TEST(LauncherTest, LinesStayWholeAndRankZeroUnchanged) {
  const Launched launched =
      launch(shell(3,
                   "i=0; while [ $i -lt 100 ]; do printf a$RANK-; printf '%s\\n' $i; i=$((i+1)); "
                   "done\n"
                   "head -c 200000 /dev/zero | tr '\\0' $RANK; printf '\\n%s' last"));
  std::array<std::string, 3> texts;
  for (const std::string_view line : split(trim(launched.out), '\n')) {
    const bool is_prefixed = line.substr(0, 6) == "[rank ";
    const size_t rank = is_prefixed ? static_cast<size_t>(line[6] - '0') : 0;
    texts.at(rank).append(line.substr(is_prefixed ? 9 : 0)).append("\n");
  }
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::string expected;
    for (int i = 0; i < 100; ++i) {
      expected += "a" + std::to_string(rank) + "-" + std::to_string(i) + "\n";
    }
    expected += std::string(200000, static_cast<char>('0' + rank)) + "\nlast\n";
    EXPECT_TRUE(texts.at(rank) == expected) << "rank " << rank;
  }
}

TEST(LauncherTest, StandardErrorIsPrefixedThereAndNotInOutput) {
  const Launched launched = launch(shell(2, "echo out; echo err >&2"));
  EXPECT_THAT(launched.out, HasSubstr("[rank 1] out\n"));
  EXPECT_THAT(launched.out, Not(HasSubstr("err")));
  EXPECT_THAT(launched.err, HasSubstr("[rank 1] err\n"));
  EXPECT_THAT(launched.err, Not(HasSubstr("out")));
}

TEST(LauncherTest, RestartsUntilItSucceeds) {
  LaunchOptions options = shell(2, "echo try $KINORA_RESTART; [ $KINORA_RESTART = 1 ] || exit 5");
  options.max_restarts = 3;
  const Launched launched = launch(options);
  EXPECT_FALSE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.num_restarts, 1);
  EXPECT_EQ(exit_status(launched.result), 0);
  EXPECT_THAT(launched.out, HasSubstr("[rank 1] try 1\n"));
  EXPECT_THAT(launched.err, HasSubstr("failed first: exit code 5\n"));
  EXPECT_THAT(launched.err, HasSubstr("[launch] all ranks start again: restart 1 of 3\n"));
}

TEST(LauncherTest, StartsAgainAsOftenAsRanksWantIt) {
  LaunchOptions options =
      shell(2, "[ $KINORA_RESTART = 3 ] || exit $((KINORA_RESTART == 1 ? 5 : 9))");
  options.again_codes = {9};
  options.max_restarts = 1;
  const Launched launched = launch(options);
  EXPECT_FALSE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.num_restarts, 3);
  EXPECT_THAT(launched.err, HasSubstr("[launch] all ranks start again, as rank "));
  EXPECT_THAT(launched.err, HasSubstr("[launch] all ranks start again: restart 1 of 1\n"));
}

TEST(LauncherTest, GivesUpAfterTheLastRestart) {
  LaunchOptions options = shell(1, "exit 5");
  options.max_restarts = 2;
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.num_restarts, 2);
  EXPECT_EQ(exit_status(launched.result), 5);
}

TEST(LauncherTest, DoesNotRepeatWhatWouldFailAgain) {
  LaunchOptions options = shell(1, "exit 5");
  options.max_restarts = 2;
  options.final_codes = {2, 5};
  const Launched launched = launch(options);
  EXPECT_EQ(launched.result.num_restarts, 0);
  EXPECT_EQ(exit_status(launched.result), 5);
}

TEST(LauncherTest, TellsOfTheFirstFailureOfEachStart) {
  LaunchOptions options = shell(2, "[ $RANK = 1 ] && exit 5; exec sleep 1000");
  options.max_restarts = 1;
  std::vector<std::string> told;
  options.on_failure = [&told](int64_t restart, const RankEnd& end) {
    told.push_back(std::to_string(restart) + ": rank " + std::to_string(end.rank) + ", " +
                   describe_end(end));
  };
  (void)launch(options);
  EXPECT_THAT(told, testing::ElementsAre("0: rank 1, exit code 5", "1: rank 1, exit code 5"));
}

TEST(LauncherTest, RefusesWhatCannotBe) {
  const auto expect_config_error = [](const LaunchOptions& options, const std::string& message) {
    try {
      (void)launch_ranks(options);
      ADD_FAILURE() << "no error: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  LaunchOptions options;
  expect_config_error(options, "a command is needed");
  options.command = {"/nowhere/program"};
  expect_config_error(options, "cannot run /nowhere/program: No such file");
  options.num_ranks = 0;
  expect_config_error(options, "must be positive, got 0");
  options.num_ranks = 2;
  options.world_size = 4;
  expect_config_error(options, "need a port");
  options.first_rank = 3;
  options.master_port = 1234;
  expect_config_error(options, "ranks 3 to 4 must lie in a world of 4");
}

/// A launcher in another process; its standard output (and error, on a terminal) comes here.
class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options, bool on_terminal = false) {
    std::array<int, 2> ends{};
    if (on_terminal) {
      EXPECT_EQ(::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
    } else {
      EXPECT_EQ(::pipe(ends.data()), 0);
    }
    output_ = ends[0];
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::dup2(ends[1], STDOUT_FILENO);
      if (on_terminal) {
        ::dup2(ends[1], STDERR_FILENO);
      }
      ::close(ends[1]);
      ::_exit(exit_status(launch_ranks(options)));
    }
    ::close(ends[1]);
  }

  ~Launcher() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  void send(int signal) const { ASSERT_EQ(::kill(pid_, signal), 0); }

  /// Reads output until it holds `num` times `text`.
  void wait_for(const std::string& text, int num) {
    while (count(text) < num) {
      ASSERT_TRUE(read_some()) << "the output ended early: " << out_;
    }
  }

  int count(const std::string& text) const {
    int num = 0;
    for (size_t at = out_.find(text); at != std::string::npos; at = out_.find(text, at + 1)) {
      ++num;
    }
    return num;
  }

  /// Whether its output ends soon; nothing must come out any more.
  bool ends_within(int limit) {
    pollfd ready{output_, POLLIN, 0};
    return ::poll(&ready, 1, limit) == 1;
  }

  /// Its wait status, after its output has ended.
  int wait() {
    while (read_some()) {
    }
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }

  [[nodiscard]] const std::string& out() const { return out_; }

 private:
  bool read_some() {
    pollfd ready{output_, POLLIN, 0};
    std::array<char, 4096> bytes;
    const ssize_t size =
        ::poll(&ready, 1, kPatience) == 1 ? ::read(output_, bytes.data(), bytes.size()) : 0;
    out_.append(bytes.data(), size > 0 ? static_cast<size_t>(size) : 0);
    return size > 0;
  }

  pid_t pid_ = -1;
  int output_ = -1;
  std::string out_;
};

TEST(LauncherTest, PassesSigtermOnAndLetsRanksFinish) {
  Witness witness;
  Launcher launcher(shell(3, "trap 'echo saved; exit 0' TERM; sleep 1000 & echo ready; wait"));
  launcher.wait_for("ready\n", 3);
  launcher.send(SIGTERM);
  const int status = launcher.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(launcher.count("saved\n"), 3) << launcher.out();
  EXPECT_TRUE(witness.all_gone());
}

TEST(LauncherTest, StoppedRanksAreNoFailureAndDoNotRestart) {
  LaunchOptions options = shell(2, "echo ready; exec sleep 1000");
  options.max_restarts = 5;
  Launcher launcher(options);
  launcher.wait_for("ready\n", 2);
  launcher.send(SIGINT);
  const int status = launcher.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT) << status;
}

TEST(LauncherTest, ARankThatASchedulerStopsBeforeTheLauncherIsNoFailure) {
  const Fifo fifo;
  LaunchOptions options =
      shell(2, "if [ $RANK = 0 ]; then echo > " + fifo.path() +
                   "; kill -TERM $$; fi\n"
                   "read x < " +
                   fifo.path() + "; sleep 0.1; kill -TERM $PPID; exec sleep 1000");
  options.settle = milliseconds(kPatience);
  const LaunchResult result = launch(options).result;
  EXPECT_FALSE(result.failure.has_value());
  EXPECT_EQ(result.stop_signal, SIGTERM);
  EXPECT_EQ(exit_status(result), 128 + SIGTERM);
}

TEST(LauncherTest, KillsAfterTheStopGrace) {
  Witness witness;
  LaunchOptions options = shell(2, "trap '' TERM; echo ready; exec sleep 1000");
  options.stop_grace = milliseconds(100);
  Launcher launcher(options);
  launcher.wait_for("ready\n", 2);
  launcher.send(SIGTERM);
  const int status = launcher.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM) << status;
  EXPECT_TRUE(witness.all_gone());
}

/// Forks left until this process gets SIGTERM, from itself; 0: none to come.
int g_forks_until_stop = 0;

void stop_at_fork() {
  if (g_forks_until_stop > 0 && --g_forks_until_stop == 0) {
    ::raise(SIGTERM);
  }
}

/// Launches `options`, with SIGTERM to the launcher while it starts the rank of this number,
/// from 1.
Launched launch_and_stop_at(int rank, const LaunchOptions& options) {
  static const int kRegistered = ::pthread_atfork(stop_at_fork, nullptr, nullptr);
  EXPECT_EQ(kRegistered, 0);
  g_forks_until_stop = rank;
  return launch(options);
}

TEST(LauncherTest, AStopWhileRanksStartIsTheEndOfStarting) {
  Witness witness;
  LaunchOptions options = shell(50, "trap '' TERM; exec sleep 1000");
  options.failure_grace = milliseconds(100);
  options.stop_grace = milliseconds(kPatience);
  options.max_restarts = 5;
  const Launched launched = launch_and_stop_at(3, options);
  EXPECT_TRUE(witness.all_gone());
  EXPECT_EQ(launched.result.stop_signal, SIGTERM);
  EXPECT_EQ(launched.result.ends.size(), 3U);
  EXPECT_EQ(launched.result.num_not_started, 47);
  EXPECT_FALSE(launched.result.failure.has_value());
  EXPECT_EQ(launched.result.num_restarts, 0);
  EXPECT_EQ(exit_status(launched.result), 128 + SIGTERM);
}

TEST(LauncherTest, RanksThatEndWellWithoutTheOthersAreNoSuccess) {
  LaunchResult result;
  result.ends = {exited(0, 0)};
  result.stop_signal = SIGTERM;
  EXPECT_EQ(exit_status(result), 0);
  result.num_not_started = 1;
  EXPECT_EQ(exit_status(result), 128 + SIGTERM);
}

TEST(LauncherTest, AStopEndsAllAsSoonAsAFailureUnlessRanksNeedLonger) {
  EXPECT_LE(LaunchOptions().stop_grace, LaunchOptions().failure_grace);
}

TEST(LauncherTest, ASecondInterruptKillsAtOnce) {
  Launcher launcher(shell(2, "trap '' INT; echo ready; exec sleep 1000"));
  launcher.wait_for("ready\n", 2);
  // The launcher's clock counts, from when it saw the first: copies that come too soon do nothing.
  const auto first = std::chrono::steady_clock::now();
  do {
    launcher.send(SIGINT);
  } while (!launcher.ends_within(100));
  EXPECT_GE(std::chrono::steady_clock::now() - first, milliseconds(1000));
  const int status = launcher.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT) << status;
}

TEST(LauncherTest, RanksVanishWithALauncherThatIsKilled) {
  Witness witness;
  Launcher launcher(shell(3, "trap '' TERM INT HUP; echo ready; exec sleep 1000"));
  launcher.wait_for("ready\n", 3);
  launcher.send(SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(launcher.wait()));
  EXPECT_TRUE(witness.all_gone());
}

TEST(LauncherTest, RankZeroHasATerminalWhereThereIsOne) {
  const Fifo fifo;
  Launcher launcher(shell(2,
                          "if [ $RANK = 0 ]; then\n"
                          "  [ -t 1 ] && [ -t 2 ] && printf bar >&2\n"
                          "  exec sleep 1000\n"
                          "fi\n"
                          "[ -t 1 ] || [ -t 2 ] || { read x < " +
                              fifo.path() + "; echo line; }"),
                    true);
  launcher.wait_for("bar", 1);
  fifo.let_go();
  launcher.wait_for("line", 1);
  launcher.send(SIGTERM);
  launcher.wait();
  EXPECT_THAT(launcher.out(), StartsWith("bar\r\x1b[K[rank 1] line\r\n"));
}

}  // namespace launcher_test
}  // namespace kinora
