// U-Nets that are told nothing: trained on generated pictures of several classes, drawn, and taken
// to others' files and back.

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace unconditional_unet_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kRecipe = R"(model:
  architecture: class_unet
  in_channels: 3
  learn_sigma: false
  unet: {attends: places, channels: [32, 64], resnets: 1, depths: [0, 1], middle_depth: 1, heads: [1, 2]}
data: {source: shapes, height: 16, width: 16, count: 64, validation: 8, threads: 1}
train: {steps: 6, global_batch: 8, micro_batch: 4, threads: 1, device: cpu, label_dropout: 0.3}
lr: {value: 1.0e-2}
ema: {decays: [0.9]}
validation: {every: 3, bands: 2}
checkpoint: {every: 3}
sample: {every: 6, count: 2, method: ddim, steps: 3}
)";

class UnconditionalUnetTest : public RunTest {
 protected:
  UnconditionalUnetTest() { write_text(recipe(), kRecipe); }

  /// Its files have no class in their names.
  [[nodiscard]] io::Image drawn(const Arguments& whose, const std::string& name) const {
    run_well(joined(
        {"sample", "--seed", "3", "--device", "cpu", "--threads", "1", "--steps", "3", "--out",
         path(name), "--set", "sample.method=ddim", "--set", "sample.spacing=leading"},
        whose));
    EXPECT_FALSE(fs::exists(folder() / name / "image-00001.png"));
    return read_image(folder() / name / "image-00000.png");
  }
};

TEST_F(UnconditionalUnetTest, SixStepsEqualThreeAndThreeOnOneRankAndTwo) {
  train_well(run_dir("whole"), {});
  EXPECT_TRUE(fs::exists(run_dir("whole") / "samples/step-6.png"));
  train_well(run_dir("parts"), {"train.steps=3"});
  train_well(run_dir("parts"), {"--resume", "auto"});
  expect_same_state(run_dir("whole") / "checkpoints/step-6",
                    run_dir("parts") / "checkpoints/step-6");
  expect_same_log(run_dir("whole"), run_dir("parts"), 6);
  run_well(joined(train_command(run_dir("two"), {"parallel.plugin=zero3"}), {"--ranks", "2"}));
  expect_close_losses(run_dir("whole"), run_dir("two"), 6, 1e-5);
}

TEST_F(UnconditionalUnetTest, DrawsTheSameFromTheFilesOfOthers) {
  train_well(run_dir("run"), {"train.steps=3"});
  const std::string run = run_dir("run").string();
  const io::Image by_run = drawn({"--run", run}, "by-run");
  run_well({"convert", run, "--to", path("theirs")});
  EXPECT_TRUE(fs::exists(folder() / "theirs/model_index.json"));
  run_well({"convert", run, "--to", path("ours.safetensors")});
  run_well({"convert", path("theirs"), "--to", path("again.safetensors")});
  run_well({"convert", run, "--to", path("compvis.safetensors"), "--layout", "compvis"});
  run_well({"convert", path("compvis.safetensors"), "--to", path("back.safetensors")});
  const auto ours = checkpoint::WeightsFile::open(folder() / "ours.safetensors");
  for (const char* file : {"again.safetensors", "back.safetensors"}) {
    const auto other = checkpoint::WeightsFile::open(folder() / file);
    ASSERT_EQ(other.names(), ours.names()) << file;
    for (const std::string& name : ours.names()) {
      EXPECT_TRUE(at::equal(other.read(name), ours.read(name))) << file << " " << name;
    }
  }
  EXPECT_LE(
      difference_of(drawn({"--checkpoint", path("ours.safetensors")}, "by-ours"), by_run).most, 1);
  EXPECT_LE(difference_of(drawn({"--model", path("theirs")}, "by-theirs"), by_run).most, 1);
}

TEST_F(UnconditionalUnetTest, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(train(run_dir("bad"), {"model.text_channels=8"}).err,
              HasSubstr("model.text_channels must be 0 with model.unet.attends=places"));
  EXPECT_THAT(train(run_dir("bad"), {"model.unet.heads=[1, 3]"}).err,
              HasSubstr("model.unet.heads must divide"));
}

}  // namespace unconditional_unet_test
}  // namespace kinora::apps
