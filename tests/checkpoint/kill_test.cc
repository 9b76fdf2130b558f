// A rank killed at any moment while checkpoints are written: what has its name is whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/checkpoint/writer.h"
#include "kinora/comm/rendezvous.h"
#include "kinora/core/child_process.h"
#include "tests/checkpoint/numbered_state.h"

namespace kinora::checkpoint {
namespace kill_test {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// Set in the ranks, to the folder.
constexpr const char* kFolderVariable = "KINORA_TEST_KILL_FOLDER";
constexpr int64_t kNumRanks = 3;
constexpr int64_t kWidth = 500'000;  // 10 MB a role: most of the time is spent writing

/// Saves step after step, from the newest checkpoint on, until it or another rank is killed.
[[noreturn]] void save_for_ever(const fs::path& folder) {
  const comm::Group world = connect(
      comm::world_from_environment(), at::kCPU,
      {.connect_timeout = std::chrono::seconds(30), .operation_timeout = std::chrono::seconds(30)});
  if (world.rank() == 0) {
    remove_unfinished(folder);
  }
  world.barrier();
  NumberedState state({.world = world, .shards = world, .stage = 2}, kWidth);
  const std::vector<fs::path> checkpoints = list_checkpoints(folder);
  int64_t step = 0;
  if (!checkpoints.empty()) {
    step = load(checkpoints.back(), state.arena, world).step;
    KINORA_CHECK(state.is(step), kInternal, "step ", step, " is not what was saved");
  }
  Writer writer({.folder = folder, .keep_last = 2}, state.arena, world);
  while (true) {
    state.set(++step);
    writer.start(NumberedState::state(step));
  }
}

/// 0 if there is none.
int64_t newest_step(const fs::path& folder) {
  const std::vector<fs::path> checkpoints = list_checkpoints(folder);
  return checkpoints.empty() ? 0 : *step_of(checkpoints.back());
}

bool is_being_written(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".unfinished-") && !name.starts_with(".unfinished-step-")) {
      return true;  // those with "step" are on their way out
    }
  }
  return false;
}

/// The ranks of one life of a run.
class RunningRanks {
 public:
  explicit RunningRanks(const fs::path& folder) : output_(memfd_create("output", MFD_CLOEXEC)) {
    for (int64_t rank = 0; rank < kNumRanks; ++rank) {
      const std::string number = std::to_string(rank);
      const std::string count = std::to_string(kNumRanks);
      ranks_.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{"/proc/self/exe",
                                   "--gtest_filter=CheckpointKillTest.EveryKillLeavesWholeOnes",
                                   "--gtest_output="},
          std::vector<std::string>{std::string(kFolderVariable) + "=" + folder.string(),
                                   "RANK=" + number, "WORLD_SIZE=" + count, "LOCAL_RANK=" + number,
                                   "LOCAL_WORLD_SIZE=" + count, "MASTER_ADDR=127.0.0.1",
                                   "MASTER_PORT=" + std::to_string(store_.port()),
                                   "TORCHELASTIC_USE_AGENT_STORE=True", "OMP_NUM_THREADS=1"},
          output_, output_));
    }
  }

  /// Kills one and waits for the others, which must notice.
  void kill(int64_t victim) {
    ranks_[victim]->send(SIGKILL);
    for (const auto& rank : ranks_) {
      pollfd end = {rank->descriptor(), POLLIN, 0};
      EXPECT_EQ(::poll(&end, 1, 60'000), 1) << "a rank waits for a dead one";
      rank->reap();
    }
  }

  [[nodiscard]] std::string output() const {
    std::string text(1 << 20, '\0');
    const ssize_t count = ::pread(output_.get(), text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  comm::StoreServer store_;
  OpenDescriptor output_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

TEST(CheckpointKillTest, EveryKillLeavesWholeOnes) {
  if (const char* folder = std::getenv(kFolderVariable); folder != nullptr) {
    save_for_ever(folder);
  }
  constexpr int kKills = 5;
  const TemporaryFolder folder;
  std::mt19937 random(20261121);
  std::uniform_int_distribution<int64_t> victim(0, kNumRanks - 1);
  std::uniform_int_distribution<int> moment(0, 1000);
  int64_t newest = 0;
  int in_write = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    RunningRanks run(folder.path());
    // Until it has gone on from there, then at any moment; every other time, inside a save.
    for (int tries = 0; tries < 6000 && newest_step(folder.path()) <= newest; ++tries) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    std::this_thread::sleep_for(milliseconds(moment(random)));
    for (int tries = 0; kill % 2 == 1 && tries < 60'000 && !is_being_written(folder.path());
         ++tries) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    in_write += is_being_written(folder.path()) ? 1 : 0;
    run.kill(victim(random));
    EXPECT_THAT(run.output(), testing::Not(testing::HasSubstr("is not what was saved")));
    ASSERT_GT(newest_step(folder.path()), newest) << run.output();
    newest = newest_step(folder.path());
    for (const fs::path& path : list_checkpoints(folder.path())) {
      NumberedState loaded({}, kWidth);
      (void)load(path, loaded.arena);
      EXPECT_TRUE(loaded.is(*step_of(path))) << path;
    }
  }
  std::cout << kKills << " kills, " << in_write << " inside a save, " << newest << " steps saved\n";
  EXPECT_GT(in_write, 0);
}

}  // namespace kill_test
}  // namespace kinora::checkpoint
