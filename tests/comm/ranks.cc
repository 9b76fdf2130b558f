#include "tests/comm/ranks.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kinora/comm/rendezvous.h"
#include "kinora/core/child_process.h"

namespace kinora::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// Set in the processes of a test, to the number of ranks.
constexpr const char* kRanksVariable = "KINORA_TEST_RANKS";

// Sanitizers make processes slower.
#ifdef __SANITIZE_ADDRESS__
constexpr int kSlowness = 4;
#else
constexpr int kSlowness = 1;
#endif

struct Rank {
  OpenDescriptor output;
  std::unique_ptr<ChildProcess> process;
};

std::string contents(const OpenDescriptor& file) {
  std::string text;
  char block[4096];
  ssize_t count = 0;
  while ((count = pread(file.get(), block, sizeof(block), static_cast<off_t>(text.size()))) > 0) {
    text.append(block, static_cast<size_t>(count));
  }
  return text;
}

std::string current_test() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

Rank start_rank(int64_t rank, int64_t num_ranks, int64_t port) {
  const auto variable = [](const std::string& name, int64_t value) {
    return name + "=" + std::to_string(value);
  };
  Rank started;
  started.output = OpenDescriptor(memfd_create("output", MFD_CLOEXEC));
  started.process = std::make_unique<ChildProcess>(
      std::vector<std::string>{"/proc/self/exe", "--gtest_filter=" + current_test(),
                               "--gtest_output="},
      std::vector<std::string>{variable(kRanksVariable, num_ranks), variable("RANK", rank),
                               variable("WORLD_SIZE", num_ranks), variable("LOCAL_RANK", rank),
                               variable("LOCAL_WORLD_SIZE", num_ranks), "MASTER_ADDR=127.0.0.1",
                               variable("MASTER_PORT", port), "TORCHELASTIC_USE_AGENT_STORE=True",
                               "OMP_NUM_THREADS=1"},
      started.output, started.output);
  return started;
}

bool ends_before(const ChildProcess& process, Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd end = {process.descriptor(), POLLIN, 0};
  return poll(&end, 1, static_cast<int>(std::max<int64_t>(left, 0))) == 1;
}

void run_body(const std::function<void(const Group&)>& body, const RankOptions& options) {
  try {
    body(connect(world_from_environment(), at::kCPU, options.group));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace

void run_on_ranks(int64_t num_ranks, const std::function<void(const Group&)>& body,
                  const RankOptions& options) {
  if (const char* ranks = std::getenv(kRanksVariable); ranks != nullptr) {
    if (std::to_string(num_ranks) == ranks) {
      run_body(body, options);
    }
    return;
  }
  const StoreServer store;
  std::vector<Rank> ranks;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(start_rank(rank, num_ranks, store.port()));
  }
  const auto deadline = Clock::now() + kSlowness * options.time_limit;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ChildProcess& process = *ranks[rank].process;
    const bool in_time = ends_before(process, deadline);
    const ProcessEnd end = process.reap();
    if (!in_time || end.signal != 0 || end.exit_code != 0) {
      ADD_FAILURE() << "rank " << rank << " of " << num_ranks << " ended with code "
                    << end.exit_code << ", signal " << end.signal
                    << (in_time ? "" : ", since its time was over") << "; it said:\n"
                    << contents(ranks[rank].output);
    }
  }
}

}  // namespace kinora::comm
