// kinora, the launcher: what it answers without the program, and how it becomes the program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/core/rank_limit.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace start_test {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// A copy of the launcher in a folder of its own, which has no program beside it.
class StartTest : public RunTest {
 protected:
  StartTest() {
    fs::create_directory(folder() / "alone");
    fs::copy_file(kinora_program(), launcher());
  }

  [[nodiscard]] fs::path launcher() const { return folder() / "alone" / "kinora"; }

  [[nodiscard]] Outcome run_alone(const Arguments& arguments) const {
    return Program(launcher(), arguments, folder()).wait();
  }

  /// Puts a script beside the launcher, as the program.
  void write_program(const std::string& script) const {
    const fs::path program = folder() / "alone" / "kinora-program";
    write_text(program, "#!/bin/sh\n" + script);
    fs::permissions(program, fs::perms::owner_all);
  }

  /// Runs the launcher with `variables` and no other ones of how threads wait.
  [[nodiscard]] Outcome run_with(const Arguments& variables, const Arguments& arguments) const {
    Arguments words = {"-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.push_back(launcher().string());
    words.insert(words.end(), arguments.begin(), arguments.end());
    return Program("env", words, folder()).wait();
  }
};

TEST_F(StartTest, LoadsNoLibtorch) {
  const Outcome outcome =
      Program("env", {"LD_TRACE_LOADED_OBJECTS=1", kinora_program().string()}, folder()).wait();
  EXPECT_THAT(outcome.out, HasSubstr("libc.so"));
  for (const char* library : {"torch", "libc10", "libgomp", "libcud"}) {
    EXPECT_THAT(outcome.out, Not(HasSubstr(library)));
  }
}

TEST_F(StartTest, AnswersVersionAndHelpByItself) {
  EXPECT_THAT(run_alone({"--version"}).out, StartsWith("kinora 0."));
  EXPECT_THAT(run_alone({"--help"}).out, HasSubstr("Subcommands:"));
  const std::vector<Arguments> commands = {
      {"train"}, {"plan"},          {"sample"}, {"bench"},   {"bench", "train"},
      {"runs"},  {"runs", "pause"}, {"doctor"}, {"compare"}, {"convert"},
      {"data"},  {"data", "check"}, {"eval"},   {"demo"}};
  for (Arguments command : commands) {
    command.emplace_back("--help");
    const Outcome outcome = run_alone(command);
    EXPECT_EQ(outcome.exit_code, 0) << command.front() << ": " << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("Usage: kinora " + command.front()));
  }
}

TEST_F(StartTest, AnswersAWrongCommandLineByItself) {
  const auto expect_refused = [this](const Arguments& arguments, const std::string& message) {
    const Outcome outcome = run_alone(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.out, IsEmpty());
  };
  expect_refused({}, "A subcommand is required");
  expect_refused({"trian"}, "kinora: there is no command trian\nHint: did you mean train?\n");
  expect_refused({"data", "chekc"}, "Hint: did you mean check?\n");
  expect_refused({"train", "recipe.yaml", "--resmue", "auto"}, "Hint: did you mean --resume?\n");
  expect_refused({"bench", "train"}, "config is required");
  expect_refused({"sample", "--run", "x", "--count", "many"}, "--count");
  expect_refused({"train"}, "kinora: config error: [train] a recipe is needed. Hint: ");
  expect_refused({"sample"}, "[sample] give one of --run DIR and --checkpoint FILE_OR_DIR");
  expect_refused({"eval", "images"}, "[eval] nothing is asked for");
  expect_refused({"doctor", "--ranks", "0"}, "--ranks must be auto or a positive number, got 0");
}

TEST_F(StartTest, SaysWhereTheProgramBelongs) {
  const Outcome outcome = run_alone({"runs"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("[kinora] cannot run "));
  EXPECT_THAT(outcome.err, HasSubstr("/alone/kinora-program: No such file"));
}

TEST_F(StartTest, BecomesTheProgram) {
  write_program("for word; do echo \"<$word>\"; done; echo $PPID; exit 7\n");
  const Outcome outcome = run_alone({"runs", "a folder", "--json"});
  EXPECT_EQ(outcome.exit_code, 7) << outcome.err;
  EXPECT_EQ(outcome.out, "<runs>\n<a folder>\n<--json>\n" + std::to_string(::getpid()) + "\n");
}

TEST_F(StartTest, ThreadsSpinOnlyBrieflyUnlessToldOtherwise) {
  write_program("echo ${OMP_WAIT_POLICY-none} ${GOMP_SPINCOUNT-none}\n");
  const Outcome by_itself = run_with({}, {"runs"});
  EXPECT_EQ(by_itself.out, "none 10000\n") << by_itself.err;
  EXPECT_EQ(run_with({"GOMP_SPINCOUNT=77"}, {"runs"}).out, "none 77\n");
  EXPECT_EQ(run_with({"OMP_WAIT_POLICY=active"}, {"runs"}).out, "active none\n");
}

TEST_F(StartTest, RanksThatTheMachineCannotBearAreRefusedBeforeAnyStarts) {
  const std::string recipe_file = recipe().string();
  const std::string run = "run.dir=" + run_dir("never").string();
  const std::vector<Arguments> commands = {
      {"train", recipe_file, run},
      {"bench", "train", recipe_file, run},
      {"bench", "sample", recipe_file, run},
      {"bench", "sequence", "--device", "cpu"},
      {"sample", "--run", "never", "--device", "cpu"},
      {"eval", "a", "b", "--device", "cpu"},
      {"data", "encode", recipe_file, run, "--out", "never", "--autoencoder", "never"}};
  const int64_t cores = num_cores();
  const std::string expected = "kinora: config error: [ranks] --ranks must be at most " +
                               std::to_string(kRanksPerCore * cores) + " here, " +
                               std::to_string(kRanksPerCore) + " for each of " +
                               std::to_string(cores) +
                               " cores, got 100000. Hint: --oversubscribe allows more\n";
  for (Arguments command : commands) {
    command.insert(command.end(), {"--ranks", "100000"});
    const Outcome outcome = run_kinora(command, folder());
    EXPECT_EQ(outcome.exit_code, 2) << command[0];
    EXPECT_EQ(outcome.err, expected) << command[0];  // no rank has said anything
    EXPECT_THAT(outcome.out, IsEmpty()) << command[0];
  }
  EXPECT_FALSE(fs::exists(run_dir("never")));
}

}  // namespace start_test
}  // namespace kinora::apps
