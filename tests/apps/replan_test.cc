// A step for which memory is too little: what is said, and what train.oom=replan makes of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/apps/program_server.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace replan_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ReplanTest : public RunTest {
 protected:
  ReplanTest() {
    set_step(4);
    set_operation("aten::native_layer_norm_backward");
  }
  ~ReplanTest() override {
    for (const char* name : {kHungryStep, kHungryRank, kHungryOperation}) {
      ::unsetenv(name);
    }
  }

  static void set_step(int step) { ::setenv(kHungryStep, std::to_string(step).c_str(), 1); }

  static void set_operation(const char* name) { ::setenv(kHungryOperation, name, 1); }

  [[nodiscard]] static Arguments hungry(const Arguments& more = {}) {
    return joined(
        {std::string("model.architecture=") + kHungryFamily, "train.steps=8", "checkpoint.every=3",
         "train.global_batch=4", "train.micro_batch=1", "train.oom=replan"},
        more);
  }

  /// What a run came to, as overrides.
  [[nodiscard]] Arguments kept_plan(const std::string& run) const {
    Arguments settings;
    std::istringstream text(read_text(run_dir(run) / "replanned.txt"));
    for (std::string line; std::getline(text, line);) {
      settings.push_back(line);
    }
    return settings;
  }

  /// A run with these settings from the start, of which no step is hungry, equals `run`.
  void expect_equals_the_plan_from_the_start(const std::string& run, const Arguments& more = {}) {
    ::unsetenv(kHungryStep);
    train_well(run_dir("smaller"), hungry(joined(kept_plan(run), more)));
    expect_same_state(run_dir("smaller") / "checkpoints/step-8",
                      run_dir(run) / "checkpoints/step-8");
    expect_same_log(run_dir("smaller"), run_dir(run), 8);
  }
};

TEST_F(ReplanTest, AStepIsDoneAgainWithASmallerPlan) {
  const Outcome outcome = train(run_dir("hungry"), hungry());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr("out of memory in forward and backward of step 4: planted: no "
                      "memory; this machine has "),
            HasSubstr("; planned are "), HasSubstr("activations kept for backward"),
            HasSubstr("of activations most are of blocks."), HasSubstr("; going on with train."),
            HasSubstr("checkpoints/step-3\": step 3, 12 samples seen")));
  EXPECT_NE(kept_plan("hungry"), Arguments());
  expect_equals_the_plan_from_the_start("hungry");
}

TEST_F(ReplanTest, SmallerMicroBatchesAreTheSameSumsInAnotherOrder) {
  const Arguments large = {"train.global_batch=8", "train.micro_batch=8", "train.recompute=block"};
  train_well(run_dir("hungry"), hungry(large));
  EXPECT_THAT(kept_plan("hungry"), testing::Contains("train.micro_batch=4"));
  ::unsetenv(kHungryStep);
  train_well(run_dir("whole"), hungry(large));
  expect_close_losses(run_dir("hungry"), run_dir("whole"), 8, 1e-4);
}

TEST_F(ReplanTest, NothingIsLostBetweenCheckpoints) {
  set_step(6);
  const Outcome outcome = train(run_dir("hungry"), hungry());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("checkpoints/step-5\": step 5, 20 samples seen"));
  expect_equals_the_plan_from_the_start("hungry");
}

TEST_F(ReplanTest, TheFirstStepBeginsAgain) {
  set_step(1);
  const Outcome outcome = train(run_dir("hungry"), hungry());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("resumed from")));
  expect_equals_the_plan_from_the_start("hungry");
}

TEST_F(ReplanTest, WhoGoesOnLaterHasTheSmallerPlan) {
  ASSERT_EQ(train(run_dir("hungry"), hungry({"train.steps=5"})).exit_code, 0);
  const Arguments kept = kept_plan("hungry");
  ::unsetenv(kHungryStep);
  train_well(run_dir("hungry"), hungry({"--resume", "auto"}));
  EXPECT_EQ(kept_plan("hungry"), kept);
  expect_equals_the_plan_from_the_start("hungry");
}

TEST_F(ReplanTest, HalfAnUpdateIsNotSaved) {
  train_well(run_dir("half"), hungry({"optim.rule=lamb", "train.steps=3"}));
  set_step(2);                         // of the second start
  set_operation("aten::logical_or_");  // between the two passes
  const Outcome outcome = train(run_dir("half"), hungry({"optim.rule=lamb", "--resume", "auto"}));
  EXPECT_EQ(outcome.exit_code, kOutOfMemory);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("out of memory in the update of step 5: planted: no memory"),
                    HasSubstr("may be half of this step and half of the one before"),
                    HasSubstr("the last checkpoint is"), HasSubstr("checkpoints/step-3")));
  EXPECT_EQ(checkpoint_steps(run_dir("half")), std::vector<int64_t>{3});
}

TEST_F(ReplanTest, StopsWithNumbersUnlessItMay) {
  const Outcome outcome = train(run_dir("stops"), hungry({"train.oom=stop"}));
  EXPECT_EQ(outcome.exit_code, kOutOfMemory);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("out of memory in forward and backward of step 4"),
                                 HasSubstr("; planned are "), HasSubstr("gradients "),
                                 HasSubstr("Hint: train.oom=replan goes on")));
}

TEST_F(ReplanTest, SaysSoWhereNothingIsSmaller) {
  const Outcome outcome = train(run_dir("stops"), hungry({"train.recompute=block"}));
  EXPECT_EQ(outcome.exit_code, kOutOfMemory);
  EXPECT_THAT(outcome.err, HasSubstr("; there is no smaller plan: the least that is planned are "));
}

// The plan may divide the model otherwise, too, which is the same sums in another order.
TEST_F(ReplanTest, AllRanksStartAgainTogether) {
  ::setenv(kHungryRank, "1", 1);
  // A checkpoint is begun before the step, and finished before all start again. It is large, so
  // that it is not finished by then anyway.
  set_step(4);
  const auto trained = [&](const std::string& run, const Arguments& more) {
    const Arguments ranks = {"--ranks", "2", "parallel.plugin=zero1", "model.hidden=768"};
    return Program(build_path(kProgramServer),
                   train_command(run_dir(run), hungry(joined(ranks, more))), folder())
        .wait();
  };
  const Outcome outcome = trained("hungry", {});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 had not enough memory; all ranks start again"),
                                 HasSubstr("all ranks start again, as rank 1 wants"),
                                 HasSubstr("checkpoints/step-3\": step 3")));
  ::unsetenv(kHungryStep);
  const Outcome smaller = trained("smaller", kept_plan("hungry"));
  ASSERT_EQ(smaller.exit_code, 0) << smaller.err;
  expect_close_losses(run_dir("smaller"), run_dir("hungry"), 8, 1e-4);
}

}  // namespace replan_test
}  // namespace kinora::apps
