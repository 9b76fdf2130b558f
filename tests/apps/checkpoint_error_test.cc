// Checkpoints that are damaged, or of another model.

#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace checkpoint_error_test {

namespace fs = std::filesystem;

bool says(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

class DamagedCheckpointTest : public RunTest, public testing::WithParamInterface<const char*> {};

TEST_P(DamagedCheckpointTest, FallsBackToTheOneBeforeAndSaysSo) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=20"});
  train_well(run_dir("whole"), {"train.steps=24"});
  damage(run / "checkpoints/step-20" / GetParam());
  const Outcome outcome = train(run, {"train.steps=24", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(says(outcome, "trying the one before")) << outcome.err;
  EXPECT_TRUE(says(outcome, GetParam())) << outcome.err;
  EXPECT_TRUE(says(outcome, "step 10")) << outcome.err;
  expect_same_state(run / "checkpoints/step-24", run_dir("whole") / "checkpoints/step-24");
  // The steps in between were done again, and saved again.
  expect_same_state(run / "checkpoints/step-20", run_dir("whole") / "checkpoints/step-20");
  expect_same_log(run, run_dir("whole"), 24);
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedCheckpointTest,
                         testing::Values("master.safetensors", "exp_avg.safetensors",
                                         "exp_avg_sq.safetensors", "ema.0.safetensors",
                                         "manifest.json"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

class CheckpointErrorTest : public RunTest {};

TEST_F(CheckpointErrorTest, TheOnlyOneIsDamaged) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=10"});
  damage(run / "checkpoints/step-10/master.safetensors");
  const Outcome outcome = train(run, {"--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_TRUE(says(outcome, "master.safetensors")) << outcome.err;
  EXPECT_TRUE(says(outcome, "checksum")) << outcome.err;
  EXPECT_EQ(checkpoint_steps(run), (std::vector<int64_t>{10})) << "it must stay as it is";
}

TEST_F(CheckpointErrorTest, AskedForByPathIsDamaged) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=20"});
  damage(run / "checkpoints/step-20/ema.0.safetensors");
  const Outcome outcome =
      train(run_dir("other"), {"--resume", (run / "checkpoints/step-20").string()});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_TRUE(says(outcome, "checksum")) << outcome.err;
}

TEST_F(CheckpointErrorTest, FileIsMissingOrShort) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=10"});
  const fs::path file = run / "checkpoints/step-10/exp_avg.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  Outcome outcome = train(run, {"--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_TRUE(says(outcome, "exp_avg.safetensors")) << outcome.err;
  EXPECT_TRUE(says(outcome, "bytes")) << outcome.err;
  fs::remove(file);
  outcome = train(run, {"--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_TRUE(says(outcome, "exp_avg.safetensors")) << outcome.err;
}

TEST_F(CheckpointErrorTest, OfAnotherModel) {
  train_well(run_dir("run"), {"train.steps=10"});
  for (const char* change : {"model.hidden=64", "model.depth=1", "model.num_classes=20"}) {
    const Outcome outcome = train(run_dir("run"), {change, "--resume", "auto"});
    EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
    EXPECT_TRUE(says(outcome, "is of another model")) << outcome.err;
    EXPECT_TRUE(says(outcome, "model.* and finetune.* must be as when it was saved"))
        << outcome.err;
  }
}

TEST_F(CheckpointErrorTest, OfAnotherNumberOfAverages) {
  train_well(run_dir("run"), {"train.steps=10"});
  const Outcome outcome = train(run_dir("run"), {"ema.decays=[0.9, 0.99]", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_TRUE(says(outcome, "has no ema.1")) << outcome.err;
}

// Else the next --resume auto would go on with the newer one.
TEST_F(CheckpointErrorTest, OlderOneOfTheSameRun) {
  train_well(run_dir("run"), {"train.steps=20"});
  const Outcome outcome =
      train(run_dir("run"), {"--resume", (run_dir("run") / "checkpoints/step-10").string()});
  EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
  EXPECT_TRUE(says(outcome, "another run.dir")) << outcome.err;
}

TEST_F(CheckpointErrorTest, UnfinishedOneIsRemoved) {
  train_well(run_dir("run"), {"train.steps=10"});
  const fs::path unfinished = run_dir("run") / "checkpoints/.unfinished-12-345";
  fs::create_directory(unfinished);
  write_text(unfinished / "master.safetensors", "half");
  train_well(run_dir("run"), {"train.steps=12", "--resume", "auto"});
  EXPECT_FALSE(fs::exists(unfinished));
}

TEST_F(CheckpointErrorTest, OldOnesArePruned) {
  train_well(run_dir("run"), {"train.steps=12", "checkpoint.every=1", "checkpoint.keep_last=2",
                              "checkpoint.keep_every=5"});
  EXPECT_EQ(checkpoint_steps(run_dir("run")), (std::vector<int64_t>{5, 10, 11, 12}));
}

}  // namespace checkpoint_error_test
}  // namespace kinora::apps
