// A run that is killed at any moment goes on from a whole checkpoint.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <iostream>
#include <random>
#include <thread>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace kill_test {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Whether a save was under way: the name of a checkpoint that is being written. Pruning renames
/// too, but to a name with "step".
bool holds_unfinished_save(const fs::path& run) {
  if (!fs::exists(run / "checkpoints")) {
    return false;
  }
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".unfinished-") && !name.starts_with(".unfinished-step-")) {
      return true;
    }
  }
  return false;
}

class KillTest : public RunTest {
 protected:
  /// Saves every step; most of a checkpoint is the table of many classes, which costs a step
  /// little.
  static Arguments settings(int64_t steps) {
    return {"model.num_classes=30000", "model.depth=1",
            "train.global_batch=2",    "checkpoint.every=1",
            "checkpoint.keep_last=2",  "train.steps=" + std::to_string(steps)};
  }
};

TEST_F(KillTest, EveryKillLeavesAWholeCheckpoint) {
  constexpr int kKills = 20;
  constexpr int64_t kManySteps = 1'000'000;
  const fs::path run = run_dir("killed");
  Arguments command = train_command(run, settings(kManySteps));
  command.insert(command.end(), {"--resume", "auto"});

  std::mt19937 random(20260101);
  double startup = 0.0;  // until a run of this machine has saved for the first time
  int in_save = 0;
  int64_t newest = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    Program program(command, folder());
    const Clock::time_point started = Clock::now();
    if (kill == 0) {
      while (checkpoint_steps(run).empty() && seconds_since(started) < 60) {
        ASSERT_TRUE(program.is_running()) << program.error_text();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      startup = seconds_since(started);
    } else {
      // From the start of the process on, but mostly while it trains; every other time, inside a
      // save.
      std::uniform_real_distribution<double> moment(0.5 * startup, 3.0 * startup);
      std::this_thread::sleep_until(started + std::chrono::duration_cast<Clock::duration>(
                                                  std::chrono::duration<double>(moment(random))));
      while (kill % 2 == 1 && !holds_unfinished_save(run) && seconds_since(started) < 60) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    ASSERT_TRUE(program.is_running()) << program.error_text();
    program.send(SIGKILL);
    const Outcome outcome = program.wait();
    ASSERT_EQ(outcome.signal, SIGKILL);
    // Not one checkpoint that was there under its name was found to be damaged.
    EXPECT_EQ(outcome.err.find("error"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("trying the one before"), std::string::npos) << outcome.err;
    in_save += holds_unfinished_save(run) ? 1 : 0;
    const std::vector<int64_t> steps = checkpoint_steps(run);
    ASSERT_FALSE(steps.empty());
    EXPECT_GE(steps.back(), newest) << "a saved step was lost";
    newest = steps.back();
  }
  std::cout << kKills << " kills, " << in_save << " inside a save, " << newest
            << " steps saved, start-up " << startup << " s\n";
  EXPECT_GE(in_save * 10, kKills * 3) << "too few kills landed inside a save";
  EXPECT_GE(newest, kKills / 4) << "the run made no progress";

  const int64_t last = newest + 3;
  Arguments finish = settings(last);
  finish.insert(finish.end(), {"--resume", "auto"});
  train_well(run, finish);
  EXPECT_FALSE(holds_unfinished_save(run)) << "nobody tidied up";
  Arguments uninterrupted = settings(last);
  uninterrupted.emplace_back("checkpoint.every=0");
  train_well(run_dir("uninterrupted"), uninterrupted);
  const std::string step = "checkpoints/step-" + std::to_string(last);
  expect_same_state(run / step, run_dir("uninterrupted") / step);
  expect_same_log(run, run_dir("uninterrupted"), last);
}

}  // namespace kill_test
}  // namespace kinora::apps
