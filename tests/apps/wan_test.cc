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

TEST_F(WanTest, SaysWhatItDraws) {
  EXPECT_THAT(run_well({"sample", "--model", kPipeline.string(), "--prompt", "a", "--device", "cpu",
                        "--steps", "2", "--frames", "1", "--height", "32", "--width", "32", "--out",
                        path("one")})
                  .err,
              AllOf(HasSubstr("sampler unipc of a flow, shift 3"), HasSubstr("guidance 5")));
}

}  // namespace wan_test
}  // namespace kinora::apps
