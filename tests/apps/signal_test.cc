// SIGINT and SIGTERM: the run saves and ends well.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace signal_test {

class SignalTest : public RunTest, public testing::WithParamInterface<int> {};

TEST_P(SignalTest, SavesAndExitsWellAndResumesExactly) {
  const std::filesystem::path run = run_dir("stopped");
  Program program(kinora_program(),
                  train_command(run, {"train.steps=1000000", "checkpoint.every=0"}), folder());
  wait_for_log(program, run, 3);
  program.send(GetParam());
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<int64_t> steps = checkpoint_steps(run);
  ASSERT_EQ(steps.size(), 1U);
  const std::string message = "stopped at step " + std::to_string(steps[0]) + " by " +
                              (GetParam() == SIGINT ? "SIGINT" : "SIGTERM");
  EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("--resume auto"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_log(run).size(), static_cast<size_t>(steps[0]));

  const int64_t last = steps[0] + 4;
  const std::string all_steps = "train.steps=" + std::to_string(last);
  train_well(run, {all_steps, "checkpoint.every=0", "--resume", "auto"});
  train_well(run_dir("whole"), {all_steps, "checkpoint.every=0"});
  const std::string checkpoint = "checkpoints/step-" + std::to_string(last);
  expect_same_state(run / checkpoint, run_dir("whole") / checkpoint);
  expect_same_log(run, run_dir("whole"), last);
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, testing::Values(SIGINT, SIGTERM),
                         [](const auto& info) {
                           return info.param == SIGINT ? "interrupt" : "terminate";
                         });

}  // namespace signal_test
}  // namespace kinora::apps
