// Wan drawn with and tuned by LoRA, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): a UMT5, and captions filled up with zeros.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/run_folder.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::apps {
namespace wan_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const fs::path kPipeline = source_path("tests/inference/data/wan");

constexpr const char* kRecipe = R"(model:
  architecture: wan
  in_channels: 4
  frames: 2
  height: 4
  width: 4
  compression: 8
  num_classes: 0
  learn_sigma: false
  text_channels: 16
  text_tokens: 512
  depth: 2
  hidden: 24
  heads: 2
  patch: 2
  mlp_ratio: 1.6666666666666667
data: {source: moving_shapes, frames: 5, height: 32, width: 32, count: 8, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {kind: flow, times: logit_normal, shift: 3}
train: {steps: 4, global_batch: 4, micro_batch: 2, threads: 1, device: cpu, label_dropout: 0.3}
finetune: {lora: {targets: ["*.attn.*", "*.cross_attn.*", "*.mlp.*"], rank: 4, alpha: 4}}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {method: unipc, order: 2, steps: 3, guidance: 1.0}
)";

class WanTest : public RunTest {
 protected:
  WanTest() { write_text(recipe(), kRecipe); }

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

TEST_F(WanTest, LearnsOnLineAsFromACacheAndDrawsByItsAdapter) {
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
  const Arguments pipeline = {"--model",
                              kPipeline.string(),
                              "--frames",
                              "2",
                              "--height",
                              "32",
                              "--width",
                              "32",
                              "--no-cleaning",
                              "--set",
                              "sample.whole_timesteps=false"};
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
  EXPECT_THAT(checkpoint::WeightsFile::open(path("kohya") + ".safetensors").names(),
              AllOf(Contains("lora_unet_blocks_0_self_attn_q.lora_down.weight"),
                    Contains("lora_unet_blocks_1_cross_attn_v.lora_up.weight"),
                    Contains("lora_unet_blocks_1_ffn_2.alpha")));
}

/// The same of a first frame: what is different of a pipeline lies in a folder of its own.
class WanFramesTest : public WanTest {
 protected:
  [[nodiscard]] fs::path whole(const std::string& name) const {
    const fs::path to = folder() / name;
    fs::copy(kPipeline, to, fs::copy_options::recursive);
    fs::remove_all(to / "transformer");
    fs::copy(kPipeline.parent_path() / name, to,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    return to;
  }
  /// Of a model that reads what an image encoder says of the first frame.
  [[nodiscard]] static Arguments of_frames(const fs::path& pipeline, const Arguments& more = {}) {
    return joined(
        {"model.given_embedders=true", "model.image_channels=8", "frame_masks.weights.i2v_head=1",
         "image.encoder=" + (pipeline / "image_encoder").string(),
         "autoencoder.path=" + (pipeline / "vae").string(),
         "text.encoder=" + (pipeline / "text_encoder").string(),
         "checkpoint.init_from=" + (pipeline / "transformer").string()},
        more);
  }
  [[nodiscard]] static Arguments small(const fs::path& pipeline) {
    return {"--model",      pipeline.string(),
            "--frames",     "2",
            "--height",     "32",
            "--width",      "32",
            "--set",        "sample.whole_timesteps=false",
            "--image",      (pipeline / "first.png").string(),
            "--no-cleaning"};
  }
};

TEST_F(WanFramesTest, LearnsFromFirstFramesAndDrawsByItsAdapter) {
  const fs::path pipeline = whole("wan_i2v");
  train_well(run_dir("whole"), of_frames(pipeline));
  train_well(run_dir("parts"), of_frames(pipeline, {"train.steps=2"}));
  train_well(run_dir("parts"), of_frames(pipeline, {"--resume", "auto"}));
  expect_same_state(run_dir("whole") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");

  const at::Tensor by_run = drawn(
      {"--run", run_dir("whole").string(), "--image", (pipeline / "first.png").string()}, "by-run");
  EXPECT_GT(ops::relative_error(drawn(small(pipeline), "by-base"), by_run), 1e-2);
  const std::string adapter = path("adapter");
  (void)run_well({"convert", run_dir("whole").string(), "--adapter", "diffusers", "--to", adapter});
  EXPECT_LT(ops::relative_error(drawn(joined(small(pipeline), {"--lora", adapter}), "by-adapter"),
                                by_run),
            tolerance::kFewRoundings);
}

TEST_F(WanFramesTest, WhatDoesNotShowFramesIsRefused) {
  const fs::path pipeline = whole("wan_i2v");
  const auto refusal = [&](const Arguments& more) {
    const Outcome outcome = train(run_dir("refused"), of_frames(pipeline, more));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refusal({"frame_masks.weights.i2v_head=0"}),
              HasSubstr("goes on from first frames alone, and of frame_masks takes these alone. "
                        "Hint: frame_masks.weights.i2v_head=1"));
  EXPECT_THAT(refusal({"frame_masks.weights.i2v_loop=1"}), HasSubstr("takes these alone"));
  EXPECT_THAT(refusal({"image.encoder=\"\""}), HasSubstr("image.encoder=FOLDER"));
  const auto drawing = [&](const Arguments& more) {
    const Outcome outcome = run_kinora(
        joined({"sample", "--prompt", "a", "--device", "cpu", "--out", path("no")}, more),
        folder());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(drawing({"--model", pipeline.string()}), HasSubstr("Hint: --image FILE"));
  EXPECT_THAT(drawing(joined(small(pipeline), {"--loop", "2"})),
              HasSubstr("is shown a first and a last frame alone"));
  EXPECT_THAT(drawing(joined(small(pipeline), {"--low-noise-lora", "x"})),
              HasSubstr("has no second expert for --low-noise-lora"));
  EXPECT_THAT(drawing(joined(small(pipeline), {"--exchange-experts"})),
              HasSubstr("has no second expert to exchange with"));
  EXPECT_THAT(drawing(joined(small(pipeline), {"--last", (pipeline / "first.png").string()})),
              HasSubstr("Hint: no --last"));
}

TEST_F(WanFramesTest, TwoExpertsAreDrawnWithAndTakeAdaptersOfTheirOwn) {
  const fs::path pipeline = whole("wan_i2v_experts");
  const Arguments experts = joined(small(pipeline), {"--last", (pipeline / "last.png").string()});
  const at::Tensor both = drawn(experts, "both");
  EXPECT_TRUE(drawn(joined(experts, {"--offload", "1"}), "offloaded").equal(both));
  EXPECT_TRUE(drawn(joined(experts, {"--exchange-experts"}), "exchanged").equal(both));
  const auto cached = [&](const std::string& threshold) {
    return drawn(joined(experts, {"--set", "sample.cache=first_block",
                                  "sample.cache_threshold=" + threshold}),
                 "cached-" + threshold);
  };
  EXPECT_TRUE(cached("0").equal(both));
  EXPECT_GT(ops::relative_error(cached("1"), both), 1e-6);
  EXPECT_LT(ops::relative_error(cached("1"), both), 0.2);
  train_well(run_dir("expert"),
             joined(online({"model.given_embedders=true", "frame_masks.weights.i2v_head=1",
                            "frame_masks.weights.i2v_loop=1"}),
                    {"checkpoint.init_from=" + (pipeline / "transformer_2").string()}));
  const std::string adapter = path("adapter");
  (void)run_well(
      {"convert", run_dir("expert").string(), "--adapter", "diffusers", "--to", adapter});
  const at::Tensor low = drawn(joined(experts, {"--low-noise-lora", adapter}), "low");
  EXPECT_GT(ops::relative_error(low, both), 1e-4);
  EXPECT_GT(ops::relative_error(drawn(joined(experts, {"--lora", adapter}), "high"), low), 1e-4);
  const Arguments exchanged = joined(experts, {"--exchange-experts", "--low-noise-lora", adapter});
  EXPECT_TRUE(drawn(exchanged, "exchanged-low").equal(low));
}

TEST_F(WanTest, SaysWhatItDraws) {
  EXPECT_THAT(run_well({"sample", "--model", kPipeline.string(), "--prompt", "a", "--device", "cpu",
                        "--steps", "2", "--frames", "1", "--height", "32", "--width", "32", "--out",
                        path("one")})
                  .err,
              AllOf(HasSubstr("sampler unipc of a flow, shift 3"), HasSubstr("guidance 5")));
}

}  // namespace wan_test
}  // namespace kinora::apps
