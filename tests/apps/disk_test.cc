// The optimizer's state on a disk: the bits of state in memory, nothing lost by kill -9 and by a
// disk that fails, and nothing left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace disk_test {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

class DiskTest : public RunTest {
 protected:
  DiskTest() { fs::create_directory(disk()); }

  [[nodiscard]] fs::path disk() const { return folder() / "disk"; }
  [[nodiscard]] Arguments on_disk(const std::string& share = "1") const {
    return {"optim.offload=" + share, "optim.disk=" + disk().string()};
  }
  void expect_nothing_left() const { EXPECT_TRUE(fs::is_empty(disk())); }
};

class DiskRecipeTest : public DiskTest, public testing::WithParamInterface<Arguments> {};

TEST_P(DiskRecipeTest, EqualsARunInMemoryAndGoesOnFromAndToOne) {
  const auto train_to = [&](const std::string& run, const Arguments& more) {
    train_well(run_dir(run), joined(GetParam(), more));
  };
  train_to("near", {"train.steps=12"});
  train_to("far", joined(on_disk(), {"train.steps=12"}));
  train_to("from", joined(on_disk("0.5"), {"train.steps=6"}));
  train_to("from", {"train.steps=12", "--resume", "auto"});
  train_to("to", {"train.steps=6"});
  train_to("to", joined(on_disk(), {"train.steps=12", "--resume", "auto"}));
  for (const char* run : {"far", "from", "to"}) {
    expect_same_state(run_dir("near") / "checkpoints/step-12",
                      run_dir(run) / "checkpoints/step-12");
    expect_same_log(run_dir("near"), run_dir(run), 12);
  }
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, DiskRecipeTest,
    testing::Values(Arguments{"data.validation=8", "validation.every=4", "sample.every=3",
                              "sample.count=2"},
                    Arguments{"train.precision=bf16", "ema.decays=[0.9, 0.99]", "data.validation=8",
                              "validation.every=4", "sample.every=3", "sample.count=2"},
                    Arguments{"train.precision=bf16", "optim.moments=8bit", "optim.master=bf16"},
                    Arguments{"train.precision=fp16", "optim.rule=lion", "ema.decays=[]"},
                    Arguments{"optim.rule=adafactor"}));

class DiskRanksTest : public DiskTest, public testing::WithParamInterface<const char*> {};

TEST_P(DiskRanksTest, EqualRanksInMemory) {
  const auto train_to = [&](const std::string& run, const Arguments& more) {
    Arguments command =
        train_command(run_dir(run), {std::string("parallel.plugin=") + GetParam(), "--ranks", "2"});
    const Outcome outcome = run_kinora(joined(command, more), folder());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  };
  for (const char* precision : {"fp32", "bf16"}) {
    const std::string name = precision;
    const Arguments more = {"train.precision=" + name, "train.steps=6", "checkpoint.every=3",
                            "sample.every=2", "sample.count=2"};
    train_to("near-" + name, more);
    train_to("far-" + name, joined(on_disk(), more));
    for (const char* step : {"checkpoints/step-3", "checkpoints/step-6"}) {
      expect_same_state(run_dir("near-" + name) / step, run_dir("far-" + name) / step);
    }
    expect_same_log(run_dir("near-" + name), run_dir("far-" + name), 6);
  }
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Stages, DiskRanksTest, testing::Values("ddp", "zero3"),
                         [](const auto& info) { return std::string(info.param); });

// KINORA_DISK_KILLS says how many kills there are.
TEST_F(DiskTest, EveryKillLeavesAWholeCheckpointAndNothingElse) {
  const char* wanted = std::getenv("KINORA_DISK_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 5;
  const auto settings = [this](int64_t steps) {
    return joined(on_disk(), {"train.precision=bf16", "checkpoint.every=1",
                              "checkpoint.keep_last=2", "train.steps=" + std::to_string(steps)});
  };
  const fs::path run = run_dir("killed");
  std::mt19937 random(20261125);
  double startup = 0.0;
  int64_t newest = 0;
  for (int kill = 0; kill < kills; ++kill) {
    Program program(joined(train_command(run, settings(1'000'000)), {"--resume", "auto"}),
                    folder());
    const Clock::time_point started = Clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(Clock::now() - started).count();
    };
    if (kill == 0) {
      while ((!fs::exists(run / "checkpoints") || checkpoint_steps(run).empty()) &&
             elapsed() < 120) {
        ASSERT_TRUE(program.is_running()) << program.error_text();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      startup = elapsed();
    } else {
      std::uniform_real_distribution<double> moment(0.5 * startup, 3.0 * startup);
      std::this_thread::sleep_for(std::chrono::duration<double>(moment(random)));
    }
    ASSERT_TRUE(program.is_running()) << program.error_text();
    program.send(SIGKILL);
    const Outcome outcome = program.wait();
    ASSERT_EQ(outcome.signal, SIGKILL);
    EXPECT_EQ(outcome.err.find("trying the one before"), std::string::npos) << outcome.err;
    expect_nothing_left();
    ASSERT_FALSE(checkpoint_steps(run).empty());
    EXPECT_GE(checkpoint_steps(run).back(), newest) << "a saved step was lost";
    newest = checkpoint_steps(run).back();
  }
  const int64_t last = newest + 3;
  train_well(run, joined(settings(last), {"--resume", "auto"}));
  train_well(run_dir("uninterrupted"),
             {"train.precision=bf16", "train.steps=" + std::to_string(last)});
  const std::string step = "checkpoints/step-" + std::to_string(last);
  expect_same_state(run / step, run_dir("uninterrupted") / step);
  expect_same_log(run, run_dir("uninterrupted"), last);
}

/// Cuts the files without names that processes have in `disk`: so that reads fail.
void cut_files_in(const fs::path& disk) {
  std::error_code none;
  for (const auto& process : fs::directory_iterator("/proc", none)) {
    for (const auto& entry : fs::directory_iterator(process.path() / "fd", none)) {
      const std::string target = fs::read_symlink(entry.path(), none).string();
      if (target.starts_with(disk.string()) && target.ends_with("(deleted)")) {
        (void)!::truncate(entry.path().c_str(), 0);
      }
    }
  }
}

TEST_F(DiskTest, ADiskThatFailsEndsTheRunAndLeavesTheCheckpoints) {
  const fs::path run = run_dir("failed");
  Program program(
      train_command(run, joined(on_disk(), {"train.steps=1000000", "checkpoint.every=5"})),
      folder());
  const Clock::time_point end = Clock::now() + std::chrono::seconds(120);
  while (program.is_running() && Clock::now() < end) {
    if (fs::exists(run / "checkpoints") && !checkpoint_steps(run).empty()) {
      cut_files_in(fs::canonical(disk()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[disk] cannot read"));
  EXPECT_THAT(outcome.err, HasSubstr(disk().string()));
  expect_nothing_left();
  const int64_t saved = checkpoint_steps(run).back();
  train_well(run, {"train.steps=" + std::to_string(saved + 2), "--resume", "auto"});
}

TEST_F(DiskTest, WhatCannotBeIsRefusedBeforeTheFirstStep) {
  const Outcome no_share = train(run_dir("a"), {"optim.disk=" + disk().string()});
  EXPECT_NE(no_share.exit_code, 0);
  EXPECT_THAT(no_share.err, HasSubstr("optim.disk"));
  const Outcome no_folder = train(run_dir("b"), {"optim.offload=1", "optim.disk=/no/such/folder"});
  EXPECT_EQ(no_folder.exit_code, kIo);
  EXPECT_THAT(no_folder.err, HasSubstr("/no/such/folder"));
}

TEST_F(DiskTest, TheRunSaysWhatTheDiskCosts) {
  const Outcome outcome = train(run_dir("a"), joined(on_disk(), {"train.steps=1"}));
  EXPECT_THAT(outcome.err, HasSubstr("of the optimizer's state lie in " + disk().string()));
  EXPECT_THAT(outcome.err, HasSubstr("GB/s"));
  EXPECT_THAT(outcome.err, HasSubstr("on the disk"));
}

}  // namespace disk_test
}  // namespace kinora::apps
