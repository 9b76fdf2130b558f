#include "kinora/train/records/run_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <optional>

#include "kinora/core/build_info.h"
#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/train/records/run_directory.h"

namespace kinora::train {
namespace run_state_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class RunStateTest : public testing::Test {
 public:
  ~RunStateTest() override { fs::remove_all(folder_); }

 protected:
  RunStateTest() {
    std::string name = testing::TempDir() + "kinora-state-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }

  /// A run's folder, held by nobody.
  fs::path make_run(const std::string& name) const {
    const RunDirectory run(folder_ / name, {.mode = Resume::Mode::kAuto, .checkpoint = {}});
    std::ofstream(run.config_file()) << "run.dir: x\n";
    return run.path();
  }

  /// Lines of steps 1 to `last`, each of 8 samples in half a second.
  static void write_log(const fs::path& run, int64_t last) {
    std::ofstream log(run / "log.jsonl");
    for (int64_t step = 1; step <= last; ++step) {
      log << "{\"step\": " << step << ", \"loss\": " << 1.0 / static_cast<double>(step)
          << ", \"samples_per_s\": 16.0, \"step_s\": 0.5}\n";
    }
  }

  fs::path folder_;
};

TEST_F(RunStateTest, ARunningRunHasATimeLeft) {
  const fs::path path = make_run("r");
  const RunDirectory held(path, {.mode = Resume::Mode::kAuto, .checkpoint = {}});
  write_log(path, 4);
  write_state(path, {.state = RunState::kTraining, .step = 0, .steps = 10});
  const RunSummary run = summarise(path);
  EXPECT_EQ(run.state, RunState::kTraining);
  EXPECT_EQ(run.step, 4);
  EXPECT_EQ(run.steps, 10);
  EXPECT_DOUBLE_EQ(run.loss, 0.25);
  EXPECT_DOUBLE_EQ(run.samples_per_s, 16.0);
  EXPECT_DOUBLE_EQ(run.seconds_left, 3.0);
  EXPECT_FALSE(run.process.empty());
  write_state(path, {.state = RunState::kPaused, .step = 4, .steps = 10});
  EXPECT_EQ(summarise(path).state, RunState::kPaused);
  EXPECT_TRUE(std::isnan(summarise(path).seconds_left));
}

TEST_F(RunStateTest, WithoutItsProcessItHasDiedUnlessItSaidThatItEnds) {
  const fs::path path = make_run("r");
  write_state(path, {.state = RunState::kTraining, .step = 0, .steps = 10});
  EXPECT_EQ(summarise(path).state, RunState::kDied);
  write_state(path, {.state = RunState::kPaused, .step = 0, .steps = 10});
  EXPECT_EQ(summarise(path).state, RunState::kDied);
  write_state(path, {.state = RunState::kStopped, .step = 3, .steps = 10});
  EXPECT_EQ(summarise(path).state, RunState::kStopped);
  write_state(path, {.state = RunState::kComplete, .step = 10, .steps = 10});
  EXPECT_EQ(summarise(path).state, RunState::kComplete);
  EXPECT_THAT(summarise(path).process, IsEmpty());
}

TEST_F(RunStateTest, SaysWhenAndWhereItRanAndWhyItDied) {
  const fs::path path = make_run("r");
  write_state(path, {.state = RunState::kTraining, .step = 0, .steps = 10, .device = "a GPU"});
  const RunSummary first = summarise(path);
  EXPECT_EQ(first.started.size(), std::string("2026-01-31 23:59:59 UTC").size());
  EXPECT_GE(first.ended, first.started);
  EXPECT_FALSE(first.host.empty());
  EXPECT_EQ(first.device, "a GPU");
  EXPECT_EQ(first.commit, build_info().commit);
  EXPECT_THAT(first.error, IsEmpty());
  // A later process does not change when the run began.
  const std::string state = io::read_text(path / "state.json", 4096);
  const size_t at = state.find(first.started);
  io::write_file_atomic(path / "state.json", std::string(state).replace(at, 4, "2001"));
  write_state(path, {.state = RunState::kDied, .step = 0, .steps = 10, .error = "no room"});
  const RunSummary second = summarise(path);
  EXPECT_TRUE(second.started.starts_with("2001-")) << second.started;
  EXPECT_EQ(second.error, "no room");
  const RunDirectory held(path, {.mode = Resume::Mode::kAuto, .checkpoint = {}});
  EXPECT_THAT(summarise(path).ended, IsEmpty());
  EXPECT_THAT(summarise(path).error, IsEmpty());
}

TEST_F(RunStateTest, OfALongLogTheEndIsRead) {
  const fs::path path = make_run("r");
  write_log(path, 20'000);
  std::ofstream(path / "log.jsonl", std::ios::app) << "{\"step\": 20001, \"lo";  // torn
  EXPECT_EQ(summarise(path).step, 20'000);
  EXPECT_DOUBLE_EQ(summarise(path).samples_per_s, 16.0);
}

TEST_F(RunStateTest, NonsenseInItsFilesIsNoError) {
  const fs::path path = make_run("r");
  std::ofstream(path / "state.json") << "{\"state\": 7, \"steps\": \"many\"}";
  std::ofstream(path / "log.jsonl") << "[1]\n\"step\"\n{\"step\": \"x\", \"step_s\": -1}\n";
  const RunSummary run = summarise(path);
  EXPECT_EQ(run.state, RunState::kStopped);
  EXPECT_EQ(run.step, 0);
  EXPECT_TRUE(std::isnan(run.loss));
}

TEST_F(RunStateTest, RunsAreFoundBelowAFolder) {
  const fs::path b = make_run("b");
  const fs::path a = make_run("group/a");
  fs::create_directories(folder_ / "empty");
  fs::create_directories(b / "checkpoints/step-5");
  fs::create_directories(b / "checkpoints/step-40");
  EXPECT_THAT(find_runs(folder_), ElementsAre(b, a));
  EXPECT_THAT(find_runs(a), ElementsAre(a));
  EXPECT_EQ(summarise(b).checkpoint, 40);
  EXPECT_THROW((void)find_runs(folder_ / "none"), Error);
}

}  // namespace run_state_test
}  // namespace kinora::train
