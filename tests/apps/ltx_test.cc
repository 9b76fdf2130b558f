// LTX-Video tuned by LoRA and drawn with, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): a T5 that reads padding, and frames a second.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/file.h"
#include "kinora/models/autoencoders/latent_upsampler.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/latent_upsampler_file.h"
#include "tests/apps/run_folder.h"
#include "tests/models/formula_file.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::apps {
namespace ltx_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const fs::path kPipeline = source_path("tests/inference/data/ltx");

constexpr const char* kRecipe = R"(model:
  architecture: ltx_video
  in_channels: 4
  frames: 2
  height: 2
  width: 2
  compression: 16
  frame_compression: 4
  num_classes: 0
  learn_sigma: false
  text_channels: 16
  text_tokens: 128
  depth: 2
  hidden: 28
  heads: 2
data: {source: moving_shapes, frames: 5, height: 32, width: 32, count: 8, fps: 25, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {kind: flow, times: logit_normal, shift_by_tokens: [0.95, 2.05], shift_tokens: [1024, 4096]}
train: {steps: 4, global_batch: 4, micro_batch: 2, threads: 1, device: cpu, label_dropout: 0.3}
frame_masks: {image_head: 0.5}
finetune: {lora: {targets: ["*.attn.*", "*.cross_attn.*", "*.mlp.*"], rank: 4, alpha: 4}}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {last_level: 0.1, steps: 3, guidance: 1.0}
)";

class LtxTest : public RunTest {
 protected:
  LtxTest() { write_text(recipe(), kRecipe); }

  [[nodiscard]] static Arguments online(const Arguments& more = {}) {
    return joined({"autoencoder.path=" + (kPipeline / "vae").string(),
                   "text.encoder=" + (kPipeline / "text_encoder").string(),
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
    (void)run_well(joined({"sample", "--prompt", "a red circle moving up", "--seed", "3",
                           "--device", "cpu", "--threads", "1", "--steps", "3", "--guidance", "1",
                           "--save-latents", "--out", path(name)},
                          whose));
    return checkpoint::WeightsFile::open(folder() / name / "latents.safetensors").read("latents");
  }
};

TEST_F(LtxTest, LearnsOnLineAsFromACacheAndDrawsByItsAdapter) {
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
  const Arguments pipeline = {"--model", kPipeline.string(), "--frames", "8", "--height",
                              "32",      "--width",          "32"};
  EXPECT_GT(ops::relative_error(drawn(pipeline, "by-base"), by_run), 1e-2);
  for (const std::string names : {"own", "diffusers"}) {
    const std::string adapter = path(names);
    (void)run_well({"convert", run_dir("online").string(), "--adapter", names, "--to", adapter});
    // Merged into the weights, which rounds otherwise than beside them.
    EXPECT_LT(
        ops::relative_error(drawn(joined(pipeline, {"--lora", adapter}), "by-" + names), by_run),
        tolerance::kFewRoundings)
        << names;
  }
  // From a first frame, decoded at a level of noise.
  const Outcome given =
      run_well(joined({"sample", "--image", (kPipeline / "first.png").string(), "--prompt",
                       "it moves", "--steps", "2", "--device", "cpu", "--threads", "1", "--set",
                       "autoencoder.decode_level=0.05", "--out", path("given")},
                      pipeline));
  EXPECT_THAT(given.err, HasSubstr("LTXPipeline"));
  EXPECT_TRUE(fs::exists(folder() / "given"));
}

// Two pictures at frames of their own, and a clip that is drawn small, doubled and drawn on.
class LtxConditionTest : public LtxTest {
 protected:
  LtxConditionTest() {
    fs::copy(kPipeline, pipeline_, fs::copy_options::recursive);
    json index = json::parse(io::read_text(pipeline_ / "model_index.json", 1 << 20));
    index["_class_name"] = "LTXConditionPipeline";
    write_text(pipeline_ / "model_index.json", index.dump());
    write_text(pipeline_ / "scheduler/scheduler_config.json",
               R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0})");
    const fs::path upsampler = folder() / "upscaler/latent_upsampler";
    fs::create_directories(upsampler);
    write_text(upsampler / "config.json",
               R"({"_class_name": "LTXLatentUpsamplerModel", "in_channels": 4, "mid_channels": 32,
                   "num_blocks_per_stage": 1, "dims": 3})");
    models::LatentUpsampler model(
        {.in_channels = 4, .mid_channels = 32, .num_blocks_per_stage = 1, .dims = 3});
    models::write_tensors(upsampler / "diffusion_pytorch_model.safetensors",
                          models::formula_weights(model));
  }

  [[nodiscard]] std::string upscaler() const { return path("upscaler"); }
  [[nodiscard]] static std::string picture() { return (kPipeline / "first.png").string(); }
  [[nodiscard]] Outcome sample(const std::string& out, const Arguments& more) const {
    return run_kinora(
        joined({"sample", "--model", pipeline_.string(), "--prompt", "it moves", "--seed", "3",
                "--frames", "12", "--device", "cpu", "--threads", "1", "--out", path(out)},
               more),
        folder());
  }
  [[nodiscard]] at::Tensor latents(const std::string& out, const Arguments& more) const {
    const Outcome outcome = sample(out, joined({"--save-latents"}, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read(out + "/latents.safetensors");
  }
  [[nodiscard]] at::Tensor read(const std::string& file) const {
    return checkpoint::WeightsFile::open(folder() / file).read("latents");
  }

 private:
  fs::path pipeline_ = folder() / "condition";
};

TEST_F(LtxConditionTest, FramesFromAnyFrameOnAreGiven) {
  const Arguments size = {"--height", "32", "--width", "32", "--steps", "3"};
  const auto with = [&](const std::string& out, const Arguments& more) {
    return latents(out, joined(size, more));
  };
  const std::string first = picture();
  const at::Tensor both = with("both", {"--at", "0=" + first, "--at", "8=" + first});
  EXPECT_TRUE(with("named", {"--image", first, "--last", first}).equal(both));
  EXPECT_GT(ops::relative_error(
                with("in-part", {"--at", "0=" + first, "--at", "8=" + first + ":0.2"}), both),
            1e-3);
  EXPECT_GT(ops::relative_error(with("first", {"--at", "0=" + first}), both), 1e-3);
  // Ranks divide the tokens of all frames, also of those before the clip.
  EXPECT_LT(ops::relative_error(with("ranks", {"--at", "0=" + first, "--at", "8=" + first,
                                               "--ranks", "2", "--sequence", "2"}),
                                both),
            tolerance::kFewRoundings);
  // A file says what it was drawn from.
  const std::string clip = path("both/clip-00000.webp");
  const Outcome again = run_kinora(
      {"sample", "--like", clip, "--device", "cpu", "--threads", "1", "--out", path("again")},
      folder());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(io::read_file(clip, 1 << 24),
            io::read_file(folder() / "again/clip-00000.webp", 1 << 24));

  EXPECT_THAT(sample("out", joined(size, {"--at", first})).err,
              HasSubstr("--at must be FRAME=FILE or FRAME=FILE:STRENGTH"));
  EXPECT_THAT(sample("out", joined(size, {"--at", "9=" + first})).err,
              HasSubstr("none is frame 9"));
}

TEST_F(LtxConditionTest, ClipsAreDrawnSmallAndThenLarge) {
  const Arguments large = {"--height", "64", "--width", "64", "--at", "8=" + picture()};
  const Arguments both = joined(large, {"--steps", "3", "--upsample", upscaler(),
                                        "--upsample-adain", "0.5", "--upsample-tones", "0.6"});
  const at::Tensor drawn = latents("once", joined(both, {"--count", "2"}));
  EXPECT_EQ(drawn.sizes(), at::IntArrayRef({2, 4, 3, 4, 4}));
  // The same in steps of one's own.
  const at::Tensor small = latents("small", {"--height", "32", "--width", "32", "--at",
                                             "8=" + picture(), "--steps", "3", "--count", "2"});
  EXPECT_TRUE(small.equal(read("once/small/latents.safetensors")));
  const auto upsampler = pipelines::open_latent_upsampler(upscaler(), at::kCPU);
  const models::LatentSpace space = pipelines::latent_space(kPipeline / "vae");
  EXPECT_LT(ops::relative_error(
                read("once/small/upsampled.safetensors"),
                models::upsampled(*upsampler, space, small, {.adain = 0.5, .tones = 0.6})),
            1e-6);
  EXPECT_TRUE(latents("on", joined(large, {"--latents", path("once/small/upsampled.safetensors"),
                                           "--strength", "0.4", "--steps", "10", "--count", "2"}))
                  .equal(drawn));
  // The same command has nothing to draw, more clips go on, and another strength is another
  // drawing.
  EXPECT_THAT(sample("once", joined(both, {"--count", "2", "--save-latents"})).err,
              HasSubstr("2 of 2 are there already"));
  const at::Tensor more = latents("once", joined(both, {"--count", "3"}));
  EXPECT_TRUE(more.narrow(0, 0, 2).equal(drawn));
  EXPECT_THAT(
      sample("once", joined(both, {"--count", "3", "--save-latents", "--strength", "0.5"})).err,
      HasSubstr("holds samples of another drawing: begins with"));
  EXPECT_LT(
      ops::relative_error(latents("ranks", joined(both, {"--count", "2", "--ranks", "2"})), drawn),
      tolerance::kFewRoundings);
  const std::string clip = path("once/clip-00001.webp");
  const Outcome again = run_kinora(
      {"sample", "--like", clip, "--device", "cpu", "--threads", "1", "--out", path("again")},
      folder());
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(io::read_file(clip, 1 << 24),
            io::read_file(folder() / "again/clip-00001.webp", 1 << 24));
}

TEST_F(LtxConditionTest, WhatCannotBeDoubledIsRefused) {
  const auto refusal = [this](const Arguments& more) {
    const Outcome outcome = sample("out", joined({"--steps", "1", "--upsample", upscaler()}, more));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_FALSE(fs::exists(folder() / "out/small/clip-00000.webp"));
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--height", "48", "--width", "64"}),
              HasSubstr("--height must be a multiple of 32, got 48"));
  EXPECT_THAT(refusal({"--height", "64", "--width", "64", "--noise", "x"}),
              HasSubstr("--noise and --loop do not go with it"));
  EXPECT_THAT(sample("out", {"--upsample", kPipeline.string()}).err,
              HasSubstr("must be a folder of LTXLatentUpsamplePipeline"));
  write_text(folder() / "upscaler/latent_upsampler/config.json",
             R"({"_class_name": "LTXLatentUpsamplerModel", "in_channels": 8, "mid_channels": 32})");
  EXPECT_THAT(refusal({"--height", "64", "--width", "64"}),
              HasSubstr("doubles latents of 8 channels, and this model draws 4"));
  write_text(folder() / "upscaler/latent_upsampler/config.json",
             R"({"_class_name": "LTXLatentUpsamplerModel", "temporal_upsample": true})");
  EXPECT_THAT(refusal({"--height", "64", "--width", "64"}),
              HasSubstr("temporal_upsample must be false"));
}

}  // namespace ltx_test
}  // namespace kinora::apps
