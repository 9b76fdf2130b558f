// What is wrong on the command line or in a recipe: exit code and message.

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace config_error_test {

namespace fs = std::filesystem;

// docs/configuration.md lists them.

struct Refusal {
  std::string name;
  Arguments arguments;  ///< after the recipe
  int exit_code;
  std::vector<std::string> messages;  ///< parts of what is said
};

std::ostream& operator<<(std::ostream& stream, const Refusal& value) {
  return stream << value.name;
}

void expect_refusal(const Outcome& outcome, int exit_code,
                    const std::vector<std::string>& messages) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  for (const std::string& message : messages) {
    EXPECT_NE(outcome.err.find(message), std::string::npos)
        << "not said: " << message << "\nin: " << outcome.err;
  }
}

class ConfigErrorTest : public RunTest, public testing::WithParamInterface<Refusal> {};

TEST_P(ConfigErrorTest, IsRefusedBeforeTheFirstStep) {
  const Refusal& refusal = GetParam();
  const fs::path run = run_dir("run");
  expect_refusal(train(run, refusal.arguments), refusal.exit_code, refusal.messages);
  EXPECT_FALSE(fs::exists(run / "log.jsonl"));
  // The mended command works without more ado.
  train_well(run, {"train.steps=1"});
}

INSTANTIATE_TEST_SUITE_P(
    Refusals, ConfigErrorTest,
    testing::Values(
        Refusal{"unknown_override",
                {"train.stepz=3"},
                kUsage,
                {"config error", "command line", "unknown key train.stepz", "train.steps"}},
        Refusal{
            "override_without_value", {"train.steps"}, kUsage, {"key.path=value", "train.steps"}},
        Refusal{"override_without_key", {"=3"}, kUsage, {"key.path=value", "=3"}},
        Refusal{"wrong_type", {"train.steps=many"}, kUsage, {"train.steps", "integer", "many"}},
        Refusal{"out_of_range",
                {"train.label_dropout=1.5"},
                kUsage,
                {"train.label_dropout", "from 0 to 1", "1.5"}},
        Refusal{"wrong_choice", {"train.precision=fp8"}, kUsage, {"fp32, bf16, fp16", "fp8"}},
        Refusal{"micro_batch_does_not_divide",
                {"train.micro_batch=3"},
                kUsage,
                {"train.micro_batch", "divide train.global_batch", "3"}},
        Refusal{"schedule_without_horizon", {"lr.schedule=cosine"}, kUsage, {"lr.horizon"}},
        Refusal{"no_ranks", {"--ranks", "0"}, kUsage, {"--ranks must be auto or a positive", "0"}},
        Refusal{"unknown_flag", {"--no-such-flag"}, kUsage, {"--no-such-flag"}},
        Refusal{"resume_from_nowhere",
                {"--resume", "/nowhere/step-1"},
                kUsage,
                {"--resume must be", "/nowhere/step-1"}},
        Refusal{"resume_from_another_folder",
                {"--resume", source_path("tests")},
                kIo,
                {"is no checkpoint", "manifest.json"}},
        Refusal{"model_of_another_size",
                {"model.height=32"},
                kUsage,
                {"model.height and width", "16 x 16", "32 x 16"}},
        Refusal{"size_not_of_patches", {"model.patch=3"}, kUsage, {"multiples of model.patch = 3"}},
        Refusal{"too_few_classes",
                {"model.num_classes=3"},
                kUsage,
                {"16 classes", "model.num_classes is 3"}},
        Refusal{"unknown_model",
                {"model.name=DiT-M/2"},
                kUsage,
                {"DiT-XL/2, ", "STDiT3-XL/2", "DiT-M/2"}},
        Refusal{"bad_recompute",
                {"train.recompute=some"},
                kUsage,
                {"train.recompute must be", "block:K", "some"}},
        Refusal{
            "recompute_of_too_many", {"train.recompute=block:3"}, kUsage, {"0 to 2", "block:3"}},
        Refusal{"heads_do_not_divide", {"model.heads=3"}, kUsage, {"model.hidden", "3"}},
        Refusal{"not_pixels", {"model.in_channels=4"}, kUsage, {"model.in_channels is 4"}},
        Refusal{"eps_of_zero", {"optim.eps=0"}, kUsage, {"optim.eps", "0"}},
        Refusal{"sampler_of_another_objective",
                {"objective.kind=flow", "model.learn_sigma=false", "sample.method=ddim",
                 "sample.every=5"},
                kUsage,
                {"sample.method must be euler"}},
        Refusal{"more_sampling_steps_than_timesteps",
                {"sample.steps=2000", "sample.every=5"},
                kUsage,
                {"sampling steps", "2000"}},
        Refusal{"validation_of_nothing", {"validation.every=5"}, kUsage, {"validation.every"}},
        Refusal{"everything_held_out",
                {"data.validation=256"},
                kUsage,
                {"leave at least 2 for training", "256 of 256"}},
        Refusal{"weights_from_nowhere",
                {"checkpoint.init_from=nowhere.safetensors"},
                kIo,
                {"nowhere.safetensors"}}),
    [](const auto& info) { return info.param.name; });

class RecipeErrorTest : public RunTest {
 protected:
  Outcome train_recipe(const std::string& text) const {
    write_text(folder() / "bad.yaml", text);
    return run_kinora(
        {"train", (folder() / "bad.yaml").string(), "run.dir=" + run_dir("run").string()},
        folder());
  }
};

TEST_F(RecipeErrorTest, UnknownKeyIsNamedWithFileLineAndNearestKey) {
  expect_refusal(train_recipe("model:\n  depht: 2\n"), kUsage,
                 {"bad.yaml:2", "unknown key model.depht", "did you mean model.depth?"});
}

TEST_F(RecipeErrorTest, WrongTypeIsNamedWithFileAndLine) {
  expect_refusal(train_recipe("# a comment\nmodel:\n  depth: two\n"), kUsage,
                 {"bad.yaml:3", "model.depth must be an integer", "two"});
}

TEST_F(RecipeErrorTest, ValueOutOfRangeIsNamedWithFileAndLine) {
  expect_refusal(train_recipe("train:\n  steps: -1\n"), kUsage,
                 {"bad.yaml:2", "train.steps must be", "-1"});
}

TEST_F(RecipeErrorTest, BrokenYamlIsNamedWithFileAndLine) {
  expect_refusal(train_recipe("train:\n  steps: [1\n"), kUsage, {"bad.yaml:"});
}

TEST_F(RecipeErrorTest, FileMustExist) {
  expect_refusal(run_kinora({"train", "nowhere.yaml"}, folder()), kIo,
                 {"io error", "nowhere.yaml", "No such file"});
}

TEST_F(RecipeErrorTest, RunDirectoryMustBeGiven) {
  expect_refusal(run_kinora({"train", recipe().string()}, folder()), kUsage,
                 {"run.dir must be given"});
}

TEST_F(RecipeErrorTest, RecipeMustBeGiven) {
  expect_refusal(run_kinora({"train"}, folder()), kUsage, {"a recipe is needed"});
}

TEST_F(RecipeErrorTest, SubcommandMustBeGiven) {
  expect_refusal(run_kinora({}, folder()), kUsage, {"subcommand"});
}

TEST_F(RecipeErrorTest, GpuThatIsNotThereIsRefused) {
  if (run_kinora({"train", recipe().string(), "run.dir=" + run_dir("gpu").string(),
                  "train.device=cuda", "train.steps=0"},
                 folder())
          .exit_code == 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  expect_refusal(train(run_dir("run"), {"train.device=cuda"}), kCuda, {"cuda error", "[device]"});
}

class RunDirectoryTest : public RunTest {};

TEST_F(RunDirectoryTest, ThatHoldsARunNeedsResume) {
  train_well(run_dir("run"), {"train.steps=1"});
  const std::string log = read_text(run_dir("run") / "log.jsonl");
  expect_refusal(train(run_dir("run"), {"train.steps=2"}), kUsage,
                 {"run.dir must be new or empty", "--resume auto"});
  EXPECT_EQ(read_text(run_dir("run") / "log.jsonl"), log);
}

TEST_F(RunDirectoryTest, ThatHoldsOtherFilesIsRefused) {
  fs::create_directory(run_dir("run"));
  write_text(run_dir("run") / "letter.txt", "dear reader");
  expect_refusal(train(run_dir("run")), kUsage, {"run.dir must be new, empty, or of a run"});
}

TEST_F(RunDirectoryTest, ThatIsAFileIsRefused) {
  write_text(run_dir("run"), "not a folder");
  expect_refusal(train(run_dir("run")), kIo, {"cannot create the run directory"});
}

TEST_F(RunDirectoryTest, ThatCannotBeWrittenIsRefused) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "the superuser may write everywhere";
  }
  fs::create_directory(run_dir("run"));
  fs::permissions(run_dir("run"), fs::perms::owner_read | fs::perms::owner_exec);
  expect_refusal(train(run_dir("run")), kIo, {"Permission denied"});
  fs::permissions(run_dir("run"), fs::perms::owner_all);
}

TEST_F(RunDirectoryTest, IsLockedAgainstASecondProcess) {
  Program first(kinora_program(), train_command(run_dir("run"), {"train.steps=1000000"}), folder());
  for (int i = 0; i < 10000 && !fs::exists(run_dir("run") / "log.jsonl"); ++i) {
    ASSERT_TRUE(first.is_running()) << first.error_text();
    ::usleep(2000);
  }
  expect_refusal(train(run_dir("run"), {"--resume", "auto"}), kIo, {"another process trains in"});
  EXPECT_TRUE(first.is_running());
}

TEST_F(RunDirectoryTest, WhoseStepsAreDoneHasNothingToDo) {
  train_well(run_dir("run"), {"train.steps=2"});
  const auto before = arrays_of(run_dir("run") / "checkpoints/step-2");
  const std::string log = read_text(run_dir("run") / "log.jsonl");
  for (const char* steps : {"train.steps=2", "train.steps=1"}) {
    const Outcome outcome = train(run_dir("run"), {steps, "--resume", "auto"});
    expect_refusal(outcome, 0, {"nothing to do", "train.steps"});
  }
  EXPECT_TRUE(before == arrays_of(run_dir("run") / "checkpoints/step-2"));
  EXPECT_EQ(read_text(run_dir("run") / "log.jsonl"), log);
}

TEST_F(RunDirectoryTest, ResumingWithOtherSettingsNamesThem) {
  train_well(run_dir("run"), {"train.steps=1"});
  expect_refusal(train(run_dir("run"), {"train.steps=2", "lr.value=5e-4", "--resume", "auto"}), 0,
                 {"lr.value was 0.001 and is now 0.0005"});
}

}  // namespace config_error_test
}  // namespace kinora::apps
