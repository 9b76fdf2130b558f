// The other commands: bench, demo, --version, --help-config, and the recipes.

#include <gtest/gtest.h>

#include <regex>

#include "kinora/core/config.h"
#include "kinora/train/run_config.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace commands_test {

namespace fs = std::filesystem;

class CommandsTest : public RunTest {};

TEST_F(CommandsTest, VersionSaysHowItWasBuilt) {
  const Outcome outcome = run_kinora({"--version"}, folder());
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* fact :
       {"kinora 0.", "commit", "compiler", "libtorch      2.11.0", "GPU support"}) {
    EXPECT_NE(outcome.out.find(fact), std::string::npos) << fact << " not in " << outcome.out;
  }
}

TEST_F(CommandsTest, HelpConfigNamesEveryKey) {
  const Outcome outcome = run_kinora({"train", "--help-config"}, folder());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto keys = flatten_config(train::RunConfig());
  EXPECT_GT(keys.size(), 50U);
  for (const auto& [key, value] : keys) {
    EXPECT_NE(outcome.out.find("  " + key + ": "), std::string::npos) << key;
  }
}

TEST_F(CommandsTest, HelpNamesEverySubcommand) {
  const Outcome outcome = run_kinora({"--help"}, folder());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* name : {"train", "sample", "bench", "data", "eval", "convert", "compare", "runs",
                           "doctor", "demo"}) {
    EXPECT_NE(outcome.out.find(name), std::string::npos) << name;
    EXPECT_EQ(run_kinora({name, "--help"}, folder()).exit_code, 0) << name;
  }
}

TEST_F(CommandsTest, NumbersBeyondTheirBoundsAreRefusedInOneForm) {
  const std::string digits = "99999999999999999999";
  struct Wrong {
    Arguments arguments;
    std::string message;
  };
  const Arguments sample = {"sample", "--run", "nowhere"};
  const auto sampled = [&sample](const std::string& option, const std::string& value) {
    Arguments arguments = sample;
    arguments.push_back(option + "=" + value);
    return arguments;
  };
  const std::vector<Wrong> lines = {
      {sampled("--count", "0"), "--count: must be an integer of 1 or more, got 0"},
      {sampled("--count", "-3"), "--count: must be an integer of 1 or more, got -3"},
      {sampled("--count", "2.5"), "--count: must be an integer of 1 or more, got 2.5"},
      {sampled("--steps", "0"), "--steps: must be an integer from 1 to 10000, got 0"},
      {sampled("--steps", "20000"), "--steps: must be an integer from 1 to 10000, got 20000"},
      {sampled("--width", "-8"), "--width: must be an integer of 1 or more, got -8"},
      {sampled("--guidance", "nan"), "--guidance: must be a number from 0 to 1000, got nan"},
      {sampled("--guidance", "inf"), "--guidance: must be a number from 0 to 1000, got inf"},
      {sampled("--guidance", "1e308"), "--guidance: must be a number from 0 to 1000, got 1e308"},
      {sampled("--seed", digits),
       "--seed: must be an integer of 0 or more, got " + digits + ". Hint: numbers have 64"},
      {sampled("--seed", "010"), "--seed: must be an integer of 0 or more, got 010"},
      {sampled("--nodes", "0"), "--nodes: must be an integer of 1 or more, got 0"},
      {{"eval", "samples", "--out", "x.npz", "--limit", "0"},
       "--limit: must be an integer of 1 or more, got 0"},
      {{"compare", "a", "b", "--threshold", "0"}, "--threshold: must be a number above 0, got 0"},
  };
  for (const Wrong& line : lines) {
    const Outcome outcome = run_kinora(line.arguments, folder());
    EXPECT_EQ(outcome.exit_code, kUsage) << line.message;
    EXPECT_NE(outcome.err.find(line.message), std::string::npos)
        << line.message << " not in " << outcome.err;
  }
}

TEST_F(CommandsTest, BenchTrainMeasures) {
  const Arguments command = {"bench",    "train", recipe().string(), "run.dir=unused",
                             "--warmup", "1",     "--steps",         "3"};
  const Outcome text = run_kinora(command, folder());
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* fact : {"device", "samples/s", "TFLOP/s", "peak memory"}) {
    EXPECT_NE(text.out.find(fact), std::string::npos) << fact << " not in " << text.out;
  }
  Arguments as_json = command;
  as_json.emplace_back("--json");
  const Outcome outcome = run_kinora(as_json, folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto facts = nlohmann::json::parse(outcome.out);
  for (const char* key : {"ms", "samples_per_s", "tflops", "gemm_tflops", "last_loss"}) {
    EXPECT_GT(facts.at(key).get<double>(), 0.0) << key;
  }
  EXPECT_EQ(facts.at("global_batch"), 8);
  EXPECT_NEAR(facts.at("samples_per_s").get<double>(), 8e3 / facts.at("ms").get<double>(),
              1e-6 * facts.at("samples_per_s").get<double>());
  EXPECT_LT(facts.at("tflops").get<double>(), facts.at("gemm_tflops").get<double>());
  EXPECT_EQ(facts.at("device").get<std::string>().substr(0, 3), "cpu");
  EXPECT_FALSE(fs::exists(folder() / "unused")) << "bench must not write";
}

TEST_F(CommandsTest, DemoEndsWithItsVerdict) {
  const std::string config = source_path("configs/demo.yaml").string();
  const Outcome outcome = run_kinora(
      {"demo", "--config", config, "run.dir=" + run_dir("demo").string(), "train.steps=3",
       "train.global_batch=2", "train.threads=1", "train.device=cpu", "model.depth=1",
       "model.hidden=32", "sample.steps=2", "sample.every=0", "checkpoint.every=0"},
      folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::regex_search(outcome.out, std::regex("\ndemo: judged [0-9]+/64 right\n$")))
      << outcome.out;
  EXPECT_NE(outcome.out.find("loss"), std::string::npos);
  EXPECT_TRUE(fs::exists(run_dir("demo") / "samples/demo.png"));
}

TEST_F(CommandsTest, DemoNeedsTheGeneratedSet) {
  const Outcome outcome =
      run_kinora({"demo", "--config", recipe().string(), "run.dir=" + run_dir("demo").string(),
                  "data.source=folder", "data.path=[x]"},
                 folder());
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("data.source must be shapes"), std::string::npos) << outcome.err;
}

}  // namespace commands_test
}  // namespace kinora::apps
