// U-Nets of classes: trained on generated pictures, drawn, and taken to others' files and back.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace class_unet_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kRecipe = R"(model:
  architecture: class_unet
  in_channels: 3
  learn_sigma: false
  text_channels: 8
  unet: {channels: [32, 32], resnets: 1, depths: [0, 1], middle_depth: 1, heads: [1, 1], classes: token}
data: {source: shapes, height: 16, width: 16, count: 64, validation: 8, threads: 1}
train: {steps: 6, global_batch: 8, micro_batch: 4, threads: 1, device: cpu, label_dropout: 0.3}
lr: {value: 1.0e-3}
ema: {decays: [0.9]}
validation: {every: 3, bands: 2}
checkpoint: {every: 3}
sample: {every: 6, count: 4, method: ddim, steps: 3, guidance: 3.0}
)";

class ClassUnetTest : public RunTest, public testing::WithParamInterface<const char*> {
 protected:
  ClassUnetTest() { write_text(recipe(), kRecipe); }

  [[nodiscard]] static Arguments with(const Arguments& more = {}) {
    return joined({std::string("model.unet.classes=") + GetParam()}, more);
  }
  /// Pictures of two classes.
  [[nodiscard]] std::vector<io::Image> drawn(const Arguments& whose,
                                             const std::string& name) const {
    run_well(joined({"sample", "--classes", "3", "0", "--seed", "3", "--device", "cpu", "--threads",
                     "1", "--steps", "3", "--guidance", "3", "--out", path(name)},
                    whose));
    return {read_image(folder() / name / "image-00000_class-3.png"),
            read_image(folder() / name / "image-00001_class-0.png")};
  }
};

INSTANTIATE_TEST_SUITE_P(Classes, ClassUnetTest, testing::Values("token", "time"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ClassUnetTest, SixStepsEqualThreeAndThreeOnOneRankAndTwo) {
  train_well(run_dir("whole"), with());
  EXPECT_TRUE(fs::exists(run_dir("whole") / "samples/step-6.png"));
  train_well(run_dir("parts"), with({"train.steps=3"}));
  train_well(run_dir("parts"), with({"--resume", "auto"}));
  expect_same_state(run_dir("whole") / "checkpoints/step-6",
                    run_dir("parts") / "checkpoints/step-6");
  expect_same_log(run_dir("whole"), run_dir("parts"), 6);
  run_well(
      joined(train_command(run_dir("two"), with({"parallel.plugin=zero3"})), {"--ranks", "2"}));
  expect_close_losses(run_dir("whole"), run_dir("two"), 6, 1e-5);
}

TEST_P(ClassUnetTest, DrawsTheSameFromTheFilesOfOthers) {
  train_well(run_dir("run"), with({"lr.value=1.0e-2"}));
  const std::string run = run_dir("run").string();
  const auto by_run = drawn({"--run", run}, "by-run");
  EXPECT_GT(difference_of(by_run[0], by_run[1]).most, 1);
  run_well({"convert", run, "--to", path("theirs")});
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
  const auto compvis = checkpoint::WeightsFile::open(folder() / "compvis.safetensors");
  const bool is_token = std::string(GetParam()) == "token";
  const std::string table = is_token ? "class_token.weight" : "class_embedding.weight";
  EXPECT_TRUE(at::equal(compvis.read(is_token ? "cond_stage_model.embedding.weight"
                                              : "model.diffusion_model.label_emb.weight"),
                        ours.read(table)));
  EXPECT_EQ(ours.read(table).size(0), 17);  // 16 shapes and the null class
  EXPECT_EQ(fs::exists(folder() / "theirs/unet/kinora.safetensors"), is_token);
  const auto expect_drawn = [&](const Arguments& whose, const std::string& name) {
    const auto got = drawn(joined(whose, {"--set", "sample.method=ddim"}), name);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(difference_of(got[i], by_run[i]).most, 1) << name << " " << i;
    }
  };
  expect_drawn({"--model", path("theirs")}, "by-theirs");
  expect_drawn({"--checkpoint", path("ours.safetensors")}, "by-ours");
}

TEST_P(ClassUnetTest, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(train(run_dir("bad"), with({"model.unet.classes=none"})).err,
              HasSubstr("model.unet.classes must be token or time"));
  EXPECT_THAT(train(run_dir("bad"), with({"model.architecture=unet", "model.text_tokens=4"})).err,
              HasSubstr("model.unet.classes must be none"));
}

}  // namespace class_unet_test
}  // namespace kinora::apps
