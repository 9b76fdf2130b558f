// kinora runs: what is asked of a run that trains, and how runs stand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace runs_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunsTest : public RunTest {
 protected:
  /// A run that goes on until it is told otherwise and has done three steps.
  std::unique_ptr<Program> start(const fs::path& run, const Arguments& more = {}) const {
    Arguments arguments = train_command(run, {"train.steps=1000000", "checkpoint.every=0"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto program = std::make_unique<Program>(arguments, folder());
    wait_for_log(*program, run, 3);
    return program;
  }

  /// kinora runs COMMAND RUN [VALUE].
  [[nodiscard]] Outcome ask(const std::string& command, const fs::path& run,
                            const std::string& value = "") const {
    Arguments arguments = {"runs", command, run.string()};
    if (!value.empty()) {
      arguments.push_back(value);
    }
    return run_kinora(arguments, folder());
  }

  void ask_well(const std::string& command, const fs::path& run,
                const std::string& value = "") const {
    const Outcome outcome = ask(command, run, value);
    EXPECT_EQ(outcome.exit_code, 0) << command << ": " << outcome.err;
  }

  [[nodiscard]] nlohmann::json summary(const fs::path& run) const {
    const Outcome outcome = run_kinora({"runs", run.string(), "--json"}, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
};

TEST_F(RunsTest, PausingSavingAndDrawingDisturbNothing) {
  const fs::path run = run_dir("controlled");
  const auto program = start(run);
  ask_well("pause", run);
  EXPECT_EQ(summary(run).at("state"), "paused");
  const int64_t paused = summary(run).at("step");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(read_log(run).size(), static_cast<size_t>(paused));
  ask_well("save", run);
  EXPECT_EQ(checkpoint_steps(run), std::vector<int64_t>{paused});
  ask_well("sample", run);
  EXPECT_TRUE(fs::exists(run / "samples" / ("step-" + std::to_string(paused) + ".png")));
  const int64_t last = paused + 40;
  ask_well("extend", run, std::to_string(last));
  EXPECT_EQ(summary(run).at("state"), "paused");
  EXPECT_EQ(summary(run).at("steps"), last);
  ask_well("continue", run);
  const Outcome outcome = program->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(summary(run).at("state"), "complete");
  EXPECT_EQ(checkpoint_steps(run), (std::vector<int64_t>{paused, last}));

  train_well(run_dir("whole"), {"train.steps=" + std::to_string(last), "checkpoint.every=0"});
  const std::string checkpoint = "checkpoints/step-" + std::to_string(last);
  expect_same_state(run / checkpoint, run_dir("whole") / checkpoint);
  expect_same_log(run, run_dir("whole"), last);
}

TEST_F(RunsTest, ALearningRateAppliesFromTheNextStep) {
  const fs::path run = run_dir("lr");
  const auto program = start(run);
  ask_well("pause", run);
  const int64_t paused = summary(run).at("step");
  ask_well("lr", run, "0.0005");
  ask_well("extend", run, std::to_string(paused + 5));
  ask_well("continue", run);
  EXPECT_EQ(program->wait().exit_code, 0);
  const std::vector<LogLine> log = read_log(run);
  ASSERT_EQ(log.size(), static_cast<size_t>(paused + 5));
  for (const LogLine& line : log) {
    EXPECT_EQ(line.at("lr"), line.at("step") <= paused ? 1e-3 : 5e-4) << line;
  }
  EXPECT_THAT(read_text(run / "config.yaml"), HasSubstr("0.0005"));
  EXPECT_THAT(program->error_text(), HasSubstr("lr.value was 0.001 and is now 0.0005"));
}

TEST_F(RunsTest, AStoppedRunHasSavedAndGoesOn) {
  const fs::path run = run_dir("stopped");
  const auto program = start(run);
  const Outcome refused = ask("continue", run);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the run is not paused"));
  const Outcome too_few = ask("extend", run, "1");
  EXPECT_EQ(too_few.exit_code, 2);
  EXPECT_THAT(too_few.err, HasSubstr("is done already"));
  const Outcome stopped = ask("stop", run);
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("stopped, and saved as step"));
  const Outcome outcome = program->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("by a request"));
  const int64_t step = summary(run).at("step");
  EXPECT_EQ(checkpoint_steps(run), std::vector<int64_t>{step});
  EXPECT_EQ(summary(run).at("state"), "stopped");

  const Outcome late = ask("pause", run);
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_THAT(late.err, HasSubstr("--resume auto"));
  train_well(run, {"train.steps=" + std::to_string(step + 2), "--resume", "auto"});
  EXPECT_EQ(summary(run).at("state"), "complete");
}

TEST_F(RunsTest, RanksDoAsOneIsAsked) {
  const fs::path run = run_dir("ranks");
  const auto program = start(run, {"--ranks", "2"});
  ask_well("pause", run);
  const int64_t paused = summary(run).at("step");
  ask_well("lr", run, "2e-4");
  ask_well("save", run);
  ask_well("continue", run);
  wait_for_log(*program, run, paused + 3);
  ask_well("stop", run);
  const Outcome outcome = program->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<LogLine> log = read_log(run);
  EXPECT_EQ(log.at(static_cast<size_t>(paused) - 1).at("lr"), 1e-3);
  EXPECT_EQ(log.at(static_cast<size_t>(paused)).at("lr"), 2e-4);
  EXPECT_EQ(checkpoint_steps(run), (std::vector<int64_t>{paused, summary(run).at("step")}));
}

TEST_F(RunsTest, ADeadRunIsKnown) {
  const fs::path run = run_dir("killed");
  const auto program = start(run);
  EXPECT_EQ(summary(run).at("state"), "training");
  program->send(SIGKILL);
  (void)program->wait();
  EXPECT_EQ(summary(run).at("state"), "died");
  const Outcome table = run_kinora({"runs", folder().string()}, folder());
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("died"));
  EXPECT_THAT(table.out, HasSubstr("samples/s"));
}

TEST_F(RunsTest, AReportIsOneFile) {
  const fs::path run = run_dir("r");
  train_well(run, {"sample.every=10", "validation.every=10", "data.validation=16"});
  const Outcome outcome = ask("report", run);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string page = read_text(run / "report.html");
  for (const char* part :
       {"<svg", "by band of t", "samples of step 20", "complete", "Peak memory", "started",
        "commit of Kinora", "classes 0 to", "What differs from the defaults"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  write_text(run / "samples/step-10.png", "broken");
  EXPECT_EQ(ask("report", run).exit_code, 0);
  EXPECT_THAT(read_text(run / "report.html"), HasSubstr("step-10.png must be a PNG"));
  const Outcome none = ask("report", folder() / "none");
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_THAT(none.err, HasSubstr("kinora runs lists them"));
}

}  // namespace runs_test
}  // namespace kinora::apps
