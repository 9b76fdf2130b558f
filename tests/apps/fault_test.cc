// Runs whose disk is full, whose files are damaged, newer or somebody else's, and that are resumed
// by another command.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace fault_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class FaultTest : public RunTest {
 protected:
  /// Trains where no file may be longer, as on a full disk.
  [[nodiscard]] Outcome train_with_small_files(const fs::path& run, int64_t bytes,
                                               const Arguments& more) const {
    Arguments command = {"--fsize=" + std::to_string(bytes), kinora_program().string()};
    const Arguments rest = train_command(run, more);
    command.insert(command.end(), rest.begin(), rest.end());
    return Program("prlimit", command, folder()).wait();
  }
};

TEST_F(FaultTest, ACheckpointThatCannotBeWrittenIsTriedOnceMoreAndThenEndsTheRun) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=10"});
  const Outcome outcome =
      train_with_small_files(run, 30'000, {"train.steps=60", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("File too large"), HasSubstr("trying once more, with step 30"),
                    HasSubstr("the run ends at step 30, and its last whole checkpoint is"),
                    HasSubstr("checkpoints/step-10")));
  EXPECT_EQ(checkpoint_steps(run), std::vector<int64_t>{10});
  train_well(run, {"train.steps=20", "--resume", "auto"});
  train_well(run_dir("whole"), {"train.steps=20"});
  expect_same_state(run / "checkpoints/step-20", run_dir("whole") / "checkpoints/step-20");
  expect_same_log(run, run_dir("whole"), 20);
}

TEST_F(FaultTest, ALogThatIsFullDoesNotStopTheRun) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=10"});
  // So long that the checkpoints fit and not one line more of the log.
  const std::string filler = R"({"event": ")" + std::string(4'000'000, 'x') + "\"}\n";
  write_text(run / "log.jsonl", read_text(run / "log.jsonl") + filler);
  const auto limit = static_cast<int64_t>(fs::file_size(run / "log.jsonl"));
  const Outcome outcome =
      train_with_small_files(run, limit, {"train.steps=20", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the run goes on without log.jsonl"));
  EXPECT_EQ(checkpoint_steps(run), (std::vector<int64_t>{10, 20}));
}

TEST_F(FaultTest, ACheckpointOfANewerVersionStopsTheRunAndStaysAsItIs) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=20"});
  const fs::path file = run / "checkpoints/step-20/manifest.json";
  auto manifest = nlohmann::json::parse(read_text(file));
  manifest["version"] = 99;
  manifest["written_by"] = "9.1.0";
  write_text(file, manifest.dump());
  const Outcome outcome = train(run, {"train.steps=24", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, kIo) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("version 99 of the format was written by kinora 9.1.0"),
                                 Not(HasSubstr("trying the one before"))));
  EXPECT_EQ(checkpoint_steps(run), (std::vector<int64_t>{10, 20}));
}

TEST_F(FaultTest, ADamagedLogIsSetAsideAndTheRunGoesOnAndIsReported) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=10"});
  write_text(run / "log.jsonl", "\x1b[31mnot json\n" + read_text(run / "log.jsonl"));
  const Outcome report = run_kinora({"runs", "report", run.string()}, folder());
  EXPECT_EQ(report.exit_code, 0) << report.err;
  const Outcome outcome = train(run, {"train.steps=12", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("has 1 damaged line, the first is line 1"),
                                 HasSubstr("damaged-log.jsonl"), Not(HasSubstr("\x1b[31m"))));
  EXPECT_EQ(read_log(run).size(), 12U);
}

TEST_F(FaultTest, AnotherCommandIsToldWhatItChangesAndHowToGoOnAsBefore) {
  const fs::path run = run_dir("run");
  train_well(run, {"train.steps=10"});
  const Outcome outcome = train(run, {"train.steps=12", "lr.value=0.5", "--resume", "auto"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(
      outcome.err,
      AllOf(HasSubstr("differs from the run in 2 keys"),
            HasSubstr("train.steps was 10 and is now 12"), HasSubstr("and is now 0.5"),
            HasSubstr("To go on as before: kinora train " +
                      (run / "checkpoints/step-10/config.yaml").string() + " --resume auto")));
  // What cannot be gone on with is explained by the same list, before it is refused.
  const Outcome refused = train(run, {"model.depth=1", "--resume", "auto"});
  EXPECT_EQ(refused.exit_code, kIo) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("model.depth was 2 and is now 1"));
}

TEST_F(FaultTest, AFolderOfOtherFilesIsNoRun) {
  const fs::path folder_of_others = folder() / "photos";
  fs::create_directory(folder_of_others);
  write_text(folder_of_others / "cat.jpg", "x");
  for (const char* mode : {"auto", "never"}) {
    const Outcome outcome = train(folder_of_others, {"--resume", mode});
    EXPECT_EQ(outcome.exit_code, kUsage) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("holds other files, such as \"cat.jpg\""));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_of_others), fs::directory_iterator()), 1);
}

TEST_F(FaultTest, AModelThatCanNeverFitIsRefusedAtOnce) {
  const Outcome outcome =
      train(run_dir("run"), {"model.hidden=16384", "model.heads=128", "model.depth=400"});
  EXPECT_EQ(outcome.exit_code, kOutOfMemory) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("memory error"), HasSubstr("this machine has")));
  const Outcome absurd =
      run_kinora({"plan", recipe().string(), "run.dir=x", "model.hidden=1e8"}, folder());
  EXPECT_EQ(absurd.exit_code, kUsage) << absurd.err;
  EXPECT_THAT(absurd.err, HasSubstr("model.hidden must be an integer from 0 to 1048576"));
}

}  // namespace fault_test
}  // namespace kinora::apps
