// Any rank of a run that is killed at any moment: the run goes on from a whole checkpoint.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <iostream>
#include <random>
#include <string>
#include <thread>

#include "tests/apps/rank_process.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace kill_ranks_test {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Layout {
  std::string name;
  int ranks;
  Arguments keys = {};
};

class KillRanksTest : public RunTest, public testing::WithParamInterface<Layout> {
 protected:
  /// Saves every step; most of a checkpoint is the table of many classes, which costs a step
  /// little.
  [[nodiscard]] static Arguments settings(int64_t steps) {
    Arguments all = {"model.num_classes=30000",
                     "model.depth=2",
                     "train.global_batch=4",
                     "train.micro_batch=1",
                     "checkpoint.every=1",
                     "checkpoint.keep_last=2",
                     "train.steps=" + std::to_string(steps),
                     "--resume",
                     "auto",
                     "--ranks",
                     std::to_string(GetParam().ranks)};
    all.insert(all.end(), GetParam().keys.begin(), GetParam().keys.end());
    return all;
  }

  static int64_t newest(const fs::path& run) {
    const std::vector<int64_t> steps =
        fs::exists(run / "checkpoints") ? checkpoint_steps(run) : std::vector<int64_t>();
    return steps.empty() ? 0 : steps.back();
  }
};

TEST_P(KillRanksTest, EveryKillLeavesAWholeCheckpoint) {
  constexpr int kKills = 2;
  const fs::path run = run_dir("killed");
  std::mt19937 random(20261121);
  std::uniform_int_distribution<int> victim(0, GetParam().ranks - 1);
  std::uniform_int_distribution<int> moment(0, 500);
  int64_t saved = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    Program program(kinora_program(), train_command(run, settings(1'000'000)), folder());
    const Clock::time_point end = Clock::now() + std::chrono::seconds(120);
    while (newest(run) <= saved && Clock::now() < end) {
      ASSERT_TRUE(program.is_running()) << program.error_text();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(moment(random)));
    const pid_t rank = rank_process(run, victim(random));
    ASSERT_GT(rank, 0) << program.error_text();
    ASSERT_EQ(::kill(rank, SIGKILL), 0);
    const Outcome outcome = program.wait(std::chrono::seconds(60));
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
    // Not one checkpoint that was there under its name was found to be damaged.
    EXPECT_EQ(outcome.err.find("trying the one before"), std::string::npos) << outcome.err;
    ASSERT_GT(newest(run), saved) << outcome.err;
    saved = newest(run);
  }
  std::cout << kKills << " kills, " << saved << " steps saved\n";

  const int64_t last = saved + 3;
  ASSERT_EQ(run_kinora(train_command(run, settings(last)), folder()).exit_code, 0);
  Arguments uninterrupted = train_command(run_dir("uninterrupted"), settings(last));
  uninterrupted.emplace_back("checkpoint.every=0");
  ASSERT_EQ(run_kinora(uninterrupted, folder()).exit_code, 0);
  const std::string step = "checkpoints/step-" + std::to_string(last);
  expect_same_state(run / step, run_dir("uninterrupted") / step);
  expect_same_log(run, run_dir("uninterrupted"), last);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, KillRanksTest,
    testing::Values(Layout{"2", 2}, Layout{"4", 4},
                    Layout{"tensor_and_pipeline", 4, {"parallel.tensor=2", "parallel.pipeline=2"}},
                    Layout{"pipeline_and_zero_1",
                           4,
                           {"parallel.pipeline=2", "parallel.pipeline_schedule=zero_bubble",
                            "parallel.zero_stage=1", "model.path=fast"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace kill_ranks_test
}  // namespace kinora::apps
