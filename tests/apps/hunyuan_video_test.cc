// HunyuanVideo drawn with and tuned by LoRA, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): a language model and a CLIP, captions without
// padding.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/run_folder.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::apps {
namespace hunyuan_video_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const fs::path kPipeline = source_path("tests/inference/data/hunyuan_video");

constexpr const char* kRecipe = R"(model:
  architecture: hunyuan_video
  in_channels: 4
  frames: 2
  height: 4
  width: 4
  compression: 8
  num_classes: 0
  learn_sigma: false
  text_channels: 16
  text_tokens: 256
  pooled_channels: 16
  depth: 2
  parallel_depth: 2
  hidden: 32
  heads: 2
  patch: 2
  rotary_axes: [4, 6, 6]
  guidance: 1.0
data: {source: moving_shapes, frames: 5, height: 32, width: 32, count: 8, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {kind: flow, times: logit_normal, shift: 7}
train: {steps: 4, global_batch: 4, micro_batch: 2, threads: 1, device: cpu, label_dropout: 0.3}
finetune: {lora: {targets: ["*.attn.*", "*.mlp.*", "*.linear1", "*.linear2"], rank: 4, alpha: 4}}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {steps: 3, guidance: 1.0, spacing: dit}
)";

class HunyuanVideoTest : public RunTest {
 protected:
  HunyuanVideoTest() { write_text(recipe(), kRecipe); }

  [[nodiscard]] static Arguments online(const Arguments& more = {}) {
    return joined(
        {"autoencoder.path=" + (kPipeline / "vae").string(), "text.encoder=" + kPipeline.string(),
         "checkpoint.init_from=" + (kPipeline / "transformer").string()},
        more);
  }
  [[nodiscard]] Outcome run_well(const Arguments& arguments) const {
    Outcome outcome = run_kinora(arguments, folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  /// The latents of a clip.
  [[nodiscard]] at::Tensor drawn(const Arguments& whose, const std::string& name) const {
    (void)run_well(
        joined({"sample", "--prompt", "a red circle moving up", "--seed", "3", "--device", "cpu",
                "--threads", "1", "--steps", "3", "--save-latents", "--out", path(name)},
               whose));
    return checkpoint::WeightsFile::open(folder() / name / "latents.safetensors").read("latents");
  }
};

TEST_F(HunyuanVideoTest, LearnsOnLineAsFromACacheAndDrawsByItsAdapter) {
  (void)run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out",
                         path("cache"), "--dtype", "fp32"},
                        online()));
  train_well(run_dir("online"), online());
  train_well(run_dir("cached"),
             online({"data.source=latents", "data.path=[" + path("cache") + "]",
                     "data.frame_layout=image", "data.frames=2", "data.text=file"}));
  expect_close_losses(run_dir("online"), run_dir("cached"), 4, 1e-5);
  train_well(run_dir("parts"), online({"train.steps=2"}));
  train_well(run_dir("parts"), online({"--resume", "auto"}));
  expect_same_state(run_dir("online") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");

  const at::Tensor by_run = drawn({"--run", run_dir("online").string()}, "by-run");
  const Arguments pipeline = {"--model", kPipeline.string(), "--frames", "2",          "--height",
                              "32",      "--width",          "32",       "--guidance", "1"};
  EXPECT_GT(ops::relative_error(drawn(pipeline, "by-base"), by_run), 1e-2);
  for (const std::string names : {"own", "diffusers", "kohya"}) {
    const std::string adapter = path(names) + (names == "kohya" ? ".safetensors" : "");
    (void)run_well({"convert", run_dir("online").string(), "--adapter", names, "--to", adapter});
    // Merged into the weights, which rounds otherwise than beside them.
    EXPECT_LT(
        ops::relative_error(drawn(joined(pipeline, {"--lora", adapter}), "by-" + names), by_run),
        tolerance::kFewRoundings)
        << names;
  }
  // As musubi-tuner and ComfyUI name them.
  EXPECT_THAT(
      checkpoint::WeightsFile::open(path("kohya") + ".safetensors").names(),
      AllOf(Contains("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"),
            Contains("lora_unet_single_blocks_1_linear2.lora_up.weight"),
            Contains("lora_unet_txt_in_individual_token_refiner_blocks_0_self_attn_qkv.alpha")));
}

TEST_F(HunyuanVideoTest, TheGuidanceScaleIsToldToTheModel) {
  const auto said = [this](const Arguments& more, const std::string& name) {
    return run_well(joined({"sample", "--model", kPipeline.string(), "--frames", "2", "--height",
                            "32", "--width", "32", "--prompt", "a", "--device", "cpu", "--steps",
                            "2", "--out", path(name)},
                           more))
        .err;
  };
  EXPECT_THAT(said({}, "default"), HasSubstr("guidance 6"));
  EXPECT_THAT(said({"--guidance", "2"}, "two"), HasSubstr("guidance 2"));
}

// Given the first frame in half of the samples, from weights that were never given any.
TEST_F(HunyuanVideoTest, LearnsToGoOnFromFirstFrames) {
  const Arguments first = {"model.clean_first_frame=true", "train.steps=2"};
  train_well(run_dir("first"), joined(online({"frame_masks.image_head=0.5"}), first));
  const auto refused = [&](const Arguments& more) {
    const Outcome outcome = train(run_dir("refused"), online(more));
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.err;
  };
  EXPECT_THAT(refused(joined({"frame_masks.image_tail=0.5"}, first)),
              HasSubstr("goes on from first frames alone"));
  EXPECT_THAT(refused({"frame_masks.image_head=0.5"}),
              HasSubstr("or model.clean_first_frame=true"));
  EXPECT_THAT(refused(joined({"model.sliding_window=[0,3,3]"}, first)),
              HasSubstr("is without model.given_embedders, model.references and "
                        "model.sliding_window, got sliding_window"));
}

// From a picture, as diffusers draws (tests/inference/hunyuan_video_i2v_test.cc).
TEST_F(HunyuanVideoTest, GoesOnFromAPicture) {
  const fs::path data = source_path("tests/inference/data");
  const fs::path pipeline = path("pipeline");
  fs::copy(kPipeline, pipeline, fs::copy_options::recursive);
  for (const char* part : {"transformer", "text_encoder"}) {
    fs::remove_all(pipeline / part);
  }
  fs::copy(data / "hunyuan_video_i2v", pipeline,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const Arguments sample = {"sample",
                            "--model",
                            pipeline.string(),
                            "--prompt",
                            "a red circle (moving), in 3 steps",
                            "--seed",
                            "5",
                            "--device",
                            "cpu",
                            "--threads",
                            "1",
                            "--steps",
                            "4",
                            "--frames",
                            "3",
                            "--height",
                            "32",
                            "--width",
                            "48",
                            "--out",
                            path("drawn"),
                            "--save-latents"};
  const std::string first = (pipeline / "first.png").string();
  (void)run_well(joined(sample, {"--image", first}));
  const at::Tensor ours =
      checkpoint::WeightsFile::open(folder() / "drawn/latents.safetensors").read("latents");
  const at::Tensor theirs =
      checkpoint::WeightsFile::open(pipeline / "drawn.safetensors").read("latents");
  EXPECT_LT(ops::relative_error(ours, theirs.narrow(0, 0, 1)), 1e-4);
  const Outcome blind = run_kinora(joined(sample, {"--overwrite"}), folder());
  EXPECT_NE(blind.exit_code, 0);
  EXPECT_THAT(blind.err, HasSubstr("are read with the first frame. Hint: --image FILE"));
}

}  // namespace hunyuan_video_test
}  // namespace kinora::apps
