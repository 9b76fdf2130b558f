// Flux drawn with and tuned by LoRA, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): a T5 and a CLIP, captions with their padding.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

namespace kinora::apps {
namespace flux_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const fs::path kPipeline = source_path("tests/inference/data/flux");

constexpr const char* kRecipe = R"(model:
  architecture: flux
  in_channels: 4
  height: 8
  width: 8
  compression: 8
  num_classes: 1
  learn_sigma: false
  text_channels: 16
  text_tokens: 512
  pooled_channels: 16
  depth: 2
  parallel_depth: 2
  hidden: 32
  heads: 2
  patch: 2
  rotary_axes: [4, 6, 6]
  guidance: 1.0
data: {source: captions, height: 64, width: 64, captions: random, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {kind: flow, times: logit_normal, shift_by_tokens: [0.5, 1.15]}
train: {steps: 4, global_batch: 4, micro_batch: 2, threads: 1, device: cpu, label_dropout: 0.3}
finetune: {lora: {targets: ["*.attn.*", "*.mlp.*", "*.linear1", "*.linear2"], rank: 4, alpha: 4}}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {steps: 3, guidance: 1.0}
)";

class FluxTest : public RunTest {
 protected:
  FluxTest() {
    fs::create_directories(folder() / "photos");
    for (int i = 0; i < 8; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i, 64 + 10 * (i % 3), 64 + 7 * i);
      write_text(folder() / (name + ".txt"), "a picture of number " + std::to_string(i));
    }
    write_text(recipe(), kRecipe);
  }

  [[nodiscard]] Arguments online(const Arguments& more = {}) const {
    return joined(
        {"data.path=[" + path("photos") + "]", "autoencoder.path=" + (kPipeline / "vae").string(),
         "text.encoder=" + kPipeline.string(),
         "checkpoint.init_from=" + (kPipeline / "transformer").string()},
        more);
  }
  [[nodiscard]] Outcome run_well(const Arguments& arguments) const {
    Outcome outcome = run_kinora(arguments, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  [[nodiscard]] io::Image drawn(const Arguments& whose, const std::string& name) const {
    (void)run_well(joined({"sample", "--prompt", "a picture of number 3", "--seed", "3", "--device",
                           "cpu", "--threads", "1", "--steps", "3", "--out", path(name)},
                          whose));
    return read_image(folder() / name / "image-00000.png");
  }
  [[nodiscard]] Arguments pipeline(const Arguments& more) const {
    return joined({"--model", kPipeline.string(), "--height", "64", "--width", "64"}, more);
  }
};

TEST_F(FluxTest, LearnsOnLineAsFromACacheAndDrawsByItsAdapter) {
  (void)run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out",
                         path("cache"), "--dtype", "fp32"},
                        online()));
  train_well(run_dir("online"), online());
  train_well(run_dir("cached"), online({"data.source=latents", "data.path=[" + path("cache") + "]",
                                        "data.text=file"}));
  const std::vector<LogLine> one = read_log(run_dir("online"));
  const std::vector<LogLine> two = read_log(run_dir("cached"));
  ASSERT_EQ(one.size(), 4U);
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const double loss = one[i].at("loss");
    EXPECT_NEAR(two[i].at("loss"), loss, 1e-5 * loss) << i;
  }
  train_well(run_dir("parts"), online({"train.steps=2"}));
  train_well(run_dir("parts"), online({"--resume", "auto"}));
  expect_same_state(run_dir("online") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");

  const io::Image by_run = drawn({"--run", run_dir("online").string()}, "by-run");
  for (const std::string names : {"own", "diffusers", "kohya"}) {
    const std::string adapter = path(names) + (names == "kohya" ? ".safetensors" : "");
    (void)run_well({"convert", run_dir("online").string(), "--adapter", names, "--to", adapter});
    const io::Image by_adapter =
        drawn(pipeline({"--lora", adapter, "--guidance", "1"}), "by-" + names);
    EXPECT_EQ(by_adapter.pixels, by_run.pixels) << names;
  }
  // As sd-scripts and ComfyUI name them.
  EXPECT_THAT(checkpoint::WeightsFile::open(path("kohya") + ".safetensors").names(),
              AllOf(Contains("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"),
                    Contains("lora_unet_single_blocks_1_linear2.lora_up.weight")));
}

TEST_F(FluxTest, TheGuidanceScaleIsToldToTheModel) {
  const auto said = [this](const Arguments& more, const std::string& name) {
    return run_well(joined({"sample", "--prompt", "a", "--device", "cpu", "--steps", "2", "--out",
                            path(name)},
                           pipeline(more)))
        .err;
  };
  EXPECT_THAT(said({}, "default"), HasSubstr("guidance 3.5"));
  EXPECT_THAT(said({"--guidance", "2"}, "two"), HasSubstr("guidance 2"));
  EXPECT_NE(read_image(folder() / "default/image-00000.png").pixels,
            read_image(folder() / "two/image-00000.png").pixels);
}

// Whole weights, through the folder of diffusers' transformer and back.
TEST_F(FluxTest, ConvertsToDiffusersAndBack) {
  (void)run_well(
      {"convert", (kPipeline / "transformer").string(), "--to", path("own.safetensors")});
  (void)run_well({"convert", path("own.safetensors"), "--to", path("back")});
  const auto theirs = checkpoint::WeightsFile::open(kPipeline / "transformer");
  const auto back = checkpoint::WeightsFile::open(folder() / "back/transformer");
  EXPECT_EQ(back.names().size(), theirs.names().size() + 2);  // and what null captions are read as
  for (const std::string& name : theirs.names()) {
    EXPECT_TRUE(back.read(name).equal(theirs.read(name))) << name;
  }
}

}  // namespace flux_test
}  // namespace kinora::apps
