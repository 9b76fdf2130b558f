// Runs that diverge, and runs that do not learn.

#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace non_finite_test {

void expect_said(const Outcome& outcome, const std::vector<std::string>& messages) {
  for (const std::string& message : messages) {
    EXPECT_NE(outcome.err.find(message), std::string::npos)
        << "not said: " << message << "\nin: " << outcome.err;
  }
}

class NonFiniteTest : public RunTest {};

// After the first step only the final layer, whose gradient alone is not zero, has moved: by 3e37.
TEST_F(NonFiniteTest, LossThatIsNotFiniteStopsTheRunAndNamesTheFirstModule) {
  const Outcome outcome = train(run_dir("run"), {"lr.value=3e37", "checkpoint.every=1"});
  EXPECT_EQ(outcome.exit_code, kDiverged) << outcome.err;
  expect_said(outcome, {"training error: [train] training diverged at step 2: the loss is ",
                        "the first output that is not finite is that of final_layer.linear",
                        "values are not finite, the others lie in", "lower lr.value"});
  // Nothing that is not finite is left behind: what was saved can be gone on from.
  const std::vector<int64_t> steps = checkpoint_steps(run_dir("run"));
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(read_log(run_dir("run")).back().at("step"), steps.back());
}

TEST_F(NonFiniteTest, LossThatOverflowsOnItsOwnIsToldFromThat) {
  const Outcome outcome = train(run_dir("run"), {"lr.value=1e30"});
  EXPECT_EQ(outcome.exit_code, kDiverged) << outcome.err;
  expect_said(outcome, {"training diverged at step 2: the loss is not a number",
                        "the loss itself overflows", "lower lr.value"});
}

// From the third step on the loss is finite and its gradient is not.
TEST_F(NonFiniteTest, GradientsThatAreNotFiniteAreSkippedAndNamedAndStopTheRunInTheEnd) {
  const Outcome outcome =
      train(run_dir("run"), {"lr.value=1e8", "model.learn_sigma=false", "model.mlp_ratio=4",
                             "train.max_skipped=3", "checkpoint.every=1"});
  EXPECT_EQ(outcome.exit_code, kDiverged) << outcome.err;
  expect_said(outcome, {"was skipped: gradients are not finite (", "1 in a row of at most 3",
                        "2 in a row of at most 3", "training diverged at step ", "now 3 in a row",
                        "lower lr.value"});
  // A skipped step changes no weight, moment or average.
  const std::vector<LogLine> log = read_log(run_dir("run"));
  ASSERT_GE(log.size(), 2U);
  EXPECT_EQ(log.back().at("skipped"), true);
  const int64_t last = log.back().at("step");
  const auto checkpoint = [&](int64_t step) {
    return arrays_of(run_dir("run") / "checkpoints" / ("step-" + std::to_string(step)));
  };
  EXPECT_TRUE(checkpoint(last) == checkpoint(last - 1));
}

class SelfTestTest : public RunTest {};

TEST_F(SelfTestTest, NamesParametersThatDoNotMove) {
  const Outcome outcome = train(run_dir("run"), {"lr.value=0", "train.steps=25"});
  EXPECT_EQ(outcome.exit_code, kDiverged) << outcome.err;
  expect_said(outcome, {"[self_test]", "have not moved", "blocks.0.attn.qkv.weight",
                        "final_layer.linear.bias", "train.self_test=false"});
}

TEST_F(SelfTestTest, CanBeTurnedOff) {
  train_well(run_dir("run"), {"lr.value=0", "train.steps=25", "train.self_test=false"});
}

TEST_F(SelfTestTest, PassesWhereEverythingLearns) {
  train_well(run_dir("run"), {"train.steps=21"});
}

}  // namespace non_finite_test
}  // namespace kinora::apps
