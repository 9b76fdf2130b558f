#include "kinora/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/train/run_lines.h"

namespace kinora::train {
namespace trainer_test {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

/// Four steps on pixels, with all that happens every so many of them.
class TrainerTest : public testing::Test {
 protected:
  [[nodiscard]] RunConfig recipe(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> overrides = {"run.dir=" + (folder_.path() / "run").string(),
                                          "data.count=40",
                                          "data.validation=8",
                                          "data.height=16",
                                          "data.width=16",
                                          "data.threads=1",
                                          "model.depth=1",
                                          "model.hidden=16",
                                          "model.heads=2",
                                          "model.patch=4",
                                          "train.steps=4",
                                          "train.global_batch=4",
                                          "train.device=cpu",
                                          "train.threads=1",
                                          "validation.every=2",
                                          "checkpoint.every=3",
                                          "sample.every=2",
                                          "sample.count=2",
                                          "sample.steps=2"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse_config<RunConfig>({.text = "{}", .origin = "test"}, overrides);
  }

  [[nodiscard]] std::vector<std::string> names(const std::string& below) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path() / "run" / below)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  [[nodiscard]] std::vector<Json> log() const { return run_lines(folder_.path() / "run"); }

  data::TemporaryFolder folder_;
};

TEST_F(TrainerTest, WhatIsDueHappensAfterItsSteps) {
  const TrainResult result = Trainer(recipe(), {}).run();
  EXPECT_EQ(result.step, 4);
  EXPECT_TRUE(result.complete);
  const std::vector<Json> lines = log();
  ASSERT_EQ(lines.size(), 4U);
  for (int64_t step = 1; step <= 4; ++step) {
    const Json& line = lines[static_cast<size_t>(step - 1)];
    EXPECT_EQ(line.at("step"), step);
    EXPECT_EQ(line.contains("validation_raw"), step % 2 == 0) << step;
    EXPECT_EQ(line.contains("validation_ema0_t3"), step % 2 == 0) << step;
  }
  EXPECT_EQ(lines.back().at("loss"), result.last_loss);
  EXPECT_THAT(names("checkpoints"), UnorderedElementsAre("step-3", "step-4"));
  EXPECT_THAT(names("samples"), UnorderedElementsAre("step-2.png", "step-4.png"));
}

TEST_F(TrainerTest, ARunThatIsDoneTakesNoStep) {
  (void)Trainer(recipe(), {}).run();
  const Resume again{.mode = Resume::Mode::kAuto, .checkpoint = {}};
  const TrainResult result = Trainer(recipe(), again).run();
  EXPECT_EQ(result.step, 4);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.last_loss, 0.0);
  EXPECT_EQ(log().size(), 4U);
}

TEST_F(TrainerTest, GoingOnGivesTheBitsOfOneRun) {
  const double want = Trainer(recipe(), {}).run().last_loss;
  fs::remove_all(folder_.path() / "run");
  (void)Trainer(recipe({"train.steps=2"}), {}).run();
  const Resume again{.mode = Resume::Mode::kAuto, .checkpoint = {}};
  EXPECT_EQ(Trainer(recipe(), again).run().last_loss, want);
}

TEST_F(TrainerTest, WhatCannotBeIsRefusedBeforeTheFirstStep) {
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    return error_of(ErrorKind::kConfig, [&] {
      const Trainer trainer(recipe(overrides), {});
      return 0;
    });
  };
  EXPECT_THAT(refusal({"train.profile_steps=1"}), HasSubstr("train.profile_steps traces a GPU"));
  EXPECT_THAT(refusal({"kernels.graphs=on"}), HasSubstr("kernels.graphs is on"));
  EXPECT_THAT(refusal({"train.global_batch=5", "parallel.shard=2"}), HasSubstr("[mesh]"));
}

}  // namespace trainer_test
}  // namespace kinora::train
