#include "tests/comm/ranks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "kinora/comm/rendezvous.h"
#include "kinora/core/child_process.h"
#include "kinora/core/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace kinora::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Set in the process that ranks are forked from.
constexpr const char* kServerVariable = "KINORA_TEST_RANK_SERVER";
/// Set in the processes of a test, to the number of ranks.
constexpr const char* kRanksVariable = "KINORA_TEST_RANKS";

// Sanitizers make processes slower.
#ifdef __SANITIZE_ADDRESS__
constexpr int kSlowness = 4;
#else
constexpr int kSlowness = 1;
#endif

OpenDescriptor open_memory() {
  return OpenDescriptor(memfd_create("output", MFD_CLOEXEC));
}

std::string contents(const OpenDescriptor& file) {
  std::string text;
  std::array<char, 4096> block{};
  ssize_t count = 0;
  while ((count = pread(file.get(), block.data(), block.size(), static_cast<off_t>(text.size()))) >
         0) {
    text.append(block.data(), static_cast<size_t>(count));
  }
  return text;
}

std::string current_test() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

/// The ranks of a test: what the server is told, as one line.
struct Job {
  int64_t num_ranks = 0;
  int64_t port = 0;
  std::chrono::milliseconds time_limit{};
  std::string test;
};

// --- In the server: its standard output is the socket, its standard error the report
// ---------------

struct Rank {
  pid_t pid = 0;
  OpenDescriptor output;
  OpenDescriptor end;  // a pidfd
};

/// False when nobody is left who could tell.
bool receive(Job& job) {
  std::array<char, 1024> line{};
  const ssize_t size = ::recv(STDOUT_FILENO, line.data(), line.size(), 0);
  if (size <= 0) {
    return false;
  }
  int64_t limit = 0;
  std::istringstream(std::string(line.data(), static_cast<size_t>(size))) >> job.num_ranks >>
      job.port >> limit >> job.test;
  job.time_limit = std::chrono::milliseconds(limit);
  return true;
}

/// The fork that is to be this rank.
void become_rank(const Job& job, int64_t rank, const OpenDescriptor& output) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(output.get(), STDERR_FILENO);
  const auto set = [](const char* name, int64_t value) {
    ::setenv(name, std::to_string(value).c_str(), 1);
  };
  set(kRanksVariable, job.num_ranks);
  set("RANK", rank);
  set("WORLD_SIZE", job.num_ranks);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", job.num_ranks);
  set("MASTER_PORT", job.port);
  testing::GTEST_FLAG(filter) = job.test;
  testing::GTEST_FLAG(output) = "";
}

bool ends_before(const Rank& rank, Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd end = {rank.end.get(), POLLIN, 0};
  return poll(&end, 1, static_cast<int>(std::max<int64_t>(left, 0))) == 1;
}

/// Waits for the ranks of a job, kills what is left of them, and reports those that failed.
void finish(const std::vector<Rank>& ranks, Clock::time_point deadline) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool in_time = ends_before(ranks[i], deadline);
    ::kill(-ranks[i].pid, SIGKILL);
    int status = 0;
    ::waitpid(ranks[i].pid, &status, 0);
    if (!in_time || status != 0) {
      std::cerr << "rank " << i << " of " << ranks.size() << " ended with code "
                << WEXITSTATUS(status) << ", signal " << WTERMSIG(status)
                << (in_time ? "" : ", since its time was over") << "; it said:\n"
                << contents(ranks[i].output) << '\n';
    }
  }
}

/// Ends the process without libtorch's destructors, which take longer than most tests of ranks.
[[noreturn]] void leave(int status) {
  std::cout.flush();
  std::fflush(nullptr);
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  std::_Exit(status);
}

/// Forks ranks as long as there is somebody to tell which.
[[noreturn]] void serve() {
  ::unsetenv(kServerVariable);
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  KINORA_CHECK(std::distance(begin(tasks), end(tasks)) == 1, kInternal,
               "[ranks] a process that is forked must have one thread");
  for (Job job; receive(job);) {
    const auto deadline = Clock::now() + job.time_limit;
    std::vector<Rank> ranks;
    for (int64_t i = 0; i < job.num_ranks; ++i) {
      Rank& rank = ranks.emplace_back();
      rank.output = open_memory();
      rank.pid = ::fork();
      if (rank.pid == 0) {
        become_rank(job, i, rank.output);
        leave(RUN_ALL_TESTS());
      }
      ::setpgid(rank.pid, rank.pid);
      rank.end = OpenDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, rank.pid, 0)));
    }
    finish(ranks, deadline);
    ::send(STDOUT_FILENO, "", 1, 0);
  }
  std::_Exit(0);
}

// --- In the test
// -----------------------------------------------------------------------------------

/// Ranks are forks of a process of this binary that has loaded libtorch and done nothing else: to
/// load it takes longer than most of their tests.
class RankServer {
 public:
  RankServer() : report_(open_memory()) {
    std::array<int, 2> ends{};
    KINORA_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, kIo,
                 "[ranks] socketpair failed");
    socket_ = OpenDescriptor(ends[0]);
    const OpenDescriptor other(ends[1]);
    process_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{"/proc/self/exe"},
        std::vector<std::string>{std::string(kServerVariable) + "=1", "MASTER_ADDR=127.0.0.1",
                                 "TORCHELASTIC_USE_AGENT_STORE=True", "OMP_NUM_THREADS=1",
                                 "GTEST_TOTAL_SHARDS=1", "GTEST_SHARD_INDEX=0", "GTEST_OUTPUT="},
        other, report_);
  }

  /// What the ranks that failed said; "" if none did.
  std::string run(const Job& job) {
    std::ostringstream line;
    line << job.num_ranks << ' ' << job.port << ' ' << job.time_limit.count() << ' ' << job.test;
    const std::string text = line.str();
    KINORA_CHECK(::ftruncate(report_.get(), 0) == 0 && ::lseek(report_.get(), 0, SEEK_SET) == 0,
                 kIo, "[ranks] the report cannot be emptied");
    char done = 0;
    if (::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(socket_.get(), &done, 1, 0) != 1) {
      return "the process that ranks are forked from ended; it said:\n" + contents(report_);
    }
    return contents(report_);
  }

 private:
  OpenDescriptor report_;
  OpenDescriptor socket_;
  std::unique_ptr<ChildProcess> process_;
};

void run_body(const std::function<void(const Group&)>& body, const RankOptions& options) {
  try {
    body(connect(world_from_environment(), at::kCPU, options.group));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace

int64_t unused_port() {
  constexpr int64_t kFirst = 10000;
  constexpr int64_t kCount = 20000;  // below those that are given to whoever asks for any
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t port = kFirst + (::getpid() + i) % kCount;
    try {
      return StoreServer(port).port();
    } catch (const Error&) {
      continue;  // somebody has it
    }
  }
  KINORA_UNREACHABLE("[ranks] all ports are taken");
}

void run_on_ranks(int64_t num_ranks, const std::function<void(const Group&)>& body,
                  const RankOptions& options) {
  if (const char* ranks = std::getenv(kRanksVariable); ranks != nullptr) {
    if (std::to_string(num_ranks) == ranks) {
      run_body(body, options);
    }
    return;
  }
  static RankServer server;
  const StoreServer store;
  const std::string failures = server.run({.num_ranks = num_ranks,
                                           .port = store.port(),
                                           .time_limit = kSlowness * options.time_limit,
                                           .test = current_test()});
  if (!failures.empty()) {
    ADD_FAILURE() << failures;
  }
}

}  // namespace kinora::comm

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (std::getenv(kinora::comm::kServerVariable) != nullptr) {
    kinora::comm::serve();
  }
  return RUN_ALL_TESTS();
}
