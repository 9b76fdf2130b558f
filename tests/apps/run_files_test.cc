// What a run leaves behind: log.jsonl, TensorBoard events, config.yaml, samples, exported weights.

#include <gtest/gtest.h>

#include <set>

#include "kinora/core/config.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/train/run_config.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace run_files_test {

namespace fs = std::filesystem;

class RunFilesTest : public RunTest {};

TEST_F(RunFilesTest, LogHasOneObjectAStepAlsoAfterResume) {
  // The first part goes on beyond its last checkpoint; what it logged there is logged anew.
  train_well(run_dir("run"), {"train.steps=15", "checkpoint.every=5"});
  fs::remove_all(run_dir("run") / "checkpoints/step-15");
  train_well(run_dir("run"), {"train.steps=20", "checkpoint.every=5", "--resume", "auto"});
  const std::vector<LogLine> log = read_log(run_dir("run"));
  ASSERT_EQ(log.size(), 20U);
  for (size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i].at("step"), static_cast<int64_t>(i) + 1);
    EXPECT_GT(log[i].at("loss").get<double>(), 0.0);
    EXPECT_EQ(log[i].at("lr"), 1e-3);
    EXPECT_GT(log[i].at("grad_norm").get<double>(), 0.0);
    EXPECT_GT(log[i].at("samples_per_s").get<double>(), 0.0);
  }
}

TEST_F(RunFilesTest, TornLastLineOfTheLogIsMended) {
  train_well(run_dir("run"), {"train.steps=10"});
  const std::string log = read_text(run_dir("run") / "log.jsonl");
  write_text(run_dir("run") / "log.jsonl", log + R"({"step": 11, "lo)");
  train_well(run_dir("run"), {"train.steps=11", "--resume", "auto"});
  EXPECT_EQ(read_log(run_dir("run")).size(), 11U);
}

TEST_F(RunFilesTest, ConfigHoldsEveryKeyAndParsesBack) {
  train_well(run_dir("run"), {"train.steps=1", "lr.value=2.5e-4"});
  const auto config = load_config<train::RunConfig>(run_dir("run") / "config.yaml");
  EXPECT_EQ(config.lr.value, 2.5e-4);
  EXPECT_EQ(config.model.num_classes, 16) << "of the data";
  EXPECT_EQ(config.model.height, 16);
  EXPECT_EQ(dump_config(config), read_text(run_dir("run") / "config.yaml"));
  // It is a recipe itself.
  const Outcome again = run_kinora(
      {"train", (run_dir("run") / "config.yaml").string(), "run.dir=" + run_dir("again").string()},
      folder());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  expect_same_state(run_dir("run") / "checkpoints/step-1", run_dir("again") / "checkpoints/step-1");
}

TEST_F(RunFilesTest, SamplesAreGridsOfTheAskedCount) {
  train_well(run_dir("run"), {"train.steps=4", "sample.every=2", "sample.count=4"});
  for (const char* name : {"step-2.png", "step-4.png"}) {
    const fs::path file = run_dir("run") / "samples" / name;
    const io::Image grid = io::decode_image(io::read_file(file, 1 << 20), file.string());
    EXPECT_GE(grid.height * grid.width, 4 * 16 * 16);
  }
}

TEST_F(RunFilesTest, ValidationIsLoggedPerWeightsAndBand) {
  train_well(run_dir("run"), {"train.steps=6", "data.validation=8", "validation.every=3",
                              "validation.bands=2", "ema.decays=[0.9, 0.5]"});
  const std::vector<LogLine> log = read_log(run_dir("run"));
  for (const size_t i : {size_t{2}, size_t{5}}) {
    for (const std::string weights : {"raw", "ema0", "ema1"}) {
      const std::string key = "validation_" + weights;
      const double mean = log[i].at(key);
      const double t0 = log[i].at(key + "_t0");
      const double t1 = log[i].at(key + "_t1");
      EXPECT_NEAR(mean, (t0 + t1) / 2, 1e-9 * mean);
    }
  }
  EXPECT_FALSE(log[3].contains("validation_raw"));
  EXPECT_NE(log[5].at("validation_raw"), log[5].at("validation_ema0"));
  EXPECT_NE(log[2].at("validation_raw"), log[5].at("validation_raw"));
}

TEST_F(RunFilesTest, StockTensorBoardReadsTheEvents) {
  const fs::path python = source_path(".venv/bin/python");
  if (!fs::exists(python) ||
      Program(python, {"-c", "import tensorboard"}, folder()).wait().exit_code != 0) {
    GTEST_SKIP() << "the Python package tensorboard is not installed";
  }
  train_well(run_dir("run"), {"train.steps=7", "checkpoint.every=5", "sample.every=3"});
  fs::remove_all(run_dir("run") / "checkpoints/step-7");
  train_well(run_dir("run"), {"train.steps=10", "checkpoint.every=5", "--resume", "auto"});
  const Outcome outcome =
      Program(python, {source_path("tools/read_events.py").string(), run_dir("run").string()},
              folder())
          .wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto events = nlohmann::json::parse(outcome.out);
  const std::vector<LogLine> log = read_log(run_dir("run"));
  for (const auto& [tag, key] : {std::pair{"train/loss", "loss"}, std::pair{"train/lr", "lr"},
                                 std::pair{"train/grad_norm", "grad_norm"}}) {
    const auto& points = events.at("scalars").at(tag);
    ASSERT_EQ(points.size(), 10U) << tag;
    for (size_t i = 0; i < points.size(); ++i) {
      EXPECT_EQ(points[i][0], log[i].at("step")) << tag;
      EXPECT_FLOAT_EQ(points[i][1].get<float>(), log[i].at(key).get<float>()) << tag;
    }
  }
  EXPECT_GE(events.at("images").at("samples").size(), 1U);
}

TEST_F(RunFilesTest, ThePythonPackageReadsExportedWeightsAndCheckpoints) {
  const fs::path python = source_path(".venv/bin/python");
  constexpr const char* kMissing = "the Python package safetensors is not installed";
  if (!fs::exists(python)) {
    GTEST_SKIP() << kMissing;
  }
  train_well(run_dir("run"), {"train.steps=2", "checkpoint.export=true"});
  const std::string code =
      "import sys\n"
      "try:\n"
      "  import torch\n"
      "  from safetensors.torch import load_file\n"
      "except ModuleNotFoundError:\n"
      "  sys.exit(77)\n"
      "weights = load_file(sys.argv[1])\n"
      "flat = load_file(sys.argv[2])\n"
      "assert weights['blocks.1.attn.qkv.weight'].shape == (96, 32)\n"
      "assert all(w.dtype == torch.float32 for w in weights.values())\n"
      "assert torch.equal(weights['x_embedder.proj.weight'].flatten(),\n"
      "                   flat['embedders'][:32 * 48])\n";
  const Outcome outcome =
      Program(python,
              {"-c", code, (run_dir("run") / "model.safetensors").string(),
               (run_dir("run") / "checkpoints/step-2/ema.0.safetensors").string()},
              folder())
          .wait();
  if (outcome.exit_code == 77) {
    GTEST_SKIP() << kMissing;
  }
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(RunFilesTest, NoTemporaryFilesAreLeft) {
  train_well(run_dir("run"), {"checkpoint.export=true"});
  const std::set<std::string> expected = {
      "checkpoints", "config.yaml", "log.jsonl", "model.safetensors",
      "samples",     "state.json",  ".lock"};
  for (const auto& entry : fs::directory_iterator(run_dir("run"))) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(expected.contains(name) || name.starts_with("events.")) << name;
  }
  for (const auto& entry : fs::recursive_directory_iterator(run_dir("run") / "checkpoints")) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

}  // namespace run_files_test
}  // namespace kinora::apps
