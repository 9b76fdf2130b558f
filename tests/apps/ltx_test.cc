// LTX-Video tuned by LoRA and drawn with, with the tiny pipeline that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): a T5 that reads padding, and frames a second.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/run_folder.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::apps {
namespace ltx_test {

namespace fs = std::filesystem;
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

}  // namespace ltx_test
}  // namespace kinora::apps
