// CogVideoX tuned by LoRA, and drawn with, with the tiny pipelines that diffusers wrote
// (tools/reference/make_pipeline_fixtures.py): captions with their padding, a chain that ends
// without signal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/checkpoint/weights_file.h"
#include "tests/apps/run_folder.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::apps {
namespace cogvideox_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kRecipe = R"(model:
  architecture: cogvideox
  in_channels: 4
  frames: 3
  height: 4
  width: 6
  compression: 8
  num_classes: 0
  learn_sigma: false
  text_channels: 16
  text_tokens: 226
  depth: 2
  hidden: 32
  heads: 2
  patch: 2
  position_scale: 1.875
  time_channels: 12
data: {source: moving_shapes, frames: 9, height: 32, width: 48, count: 8, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {prediction: v, betas: scaled_linear, beta_start: 0.00085, beta_end: 0.012, snr_shift: 3, zero_terminal_snr: true}
train: {steps: 4, global_batch: 4, micro_batch: 2, threads: 1, device: cpu, label_dropout: 0.3}
finetune: {lora: {targets: ["blocks.*.attn.*"], rank: 4, alpha: 4}}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 2}
sample: {method: ddim, spacing: trailing, steps: 3, guidance: 1.0}
)";

class CogVideoXTest : public RunTest {
 protected:
  CogVideoXTest() { write_text(recipe(), kRecipe); }

  static fs::path pipeline(const std::string& name = "cogvideox") {
    return source_path("tests/inference/data") / name;
  }
  [[nodiscard]] static Arguments online(const Arguments& more = {}) {
    return joined({"autoencoder.path=" + (pipeline() / "vae").string(),
                   "text.encoder=" + (pipeline() / "text_encoder").string(),
                   "checkpoint.init_from=" + (pipeline() / "transformer").string()},
                  more);
  }
  /// The latents of a clip.
  [[nodiscard]] at::Tensor drawn(const Arguments& whose, const std::string& name) const {
    run_well(
        joined({"sample", "--prompt", "a red circle moving up", "--seed", "3", "--device", "cpu",
                "--threads", "1", "--steps", "3", "--save-latents", "--out", path(name)},
               whose));
    return checkpoint::WeightsFile::open(folder() / name / "latents.safetensors").read("latents");
  }
};

TEST_F(CogVideoXTest, LearnsOnLineAsFromACacheAndDrawsByItsAdapter) {
  run_well(joined({"data", "encode", recipe().string(), "run.dir=unused", "--out", path("cache"),
                   "--dtype", "fp32"},
                  online()));
  train_well(run_dir("online"), online());
  train_well(run_dir("cached"),
             online({"data.source=latents", "data.path=[" + path("cache") + "]",
                     "data.frame_layout=image", "data.frames=3", "data.text=file"}));
  expect_close_losses(run_dir("online"), run_dir("cached"), 4, 1e-5);
  train_well(run_dir("parts"), online({"train.steps=2"}));
  train_well(run_dir("parts"), online({"--resume", "auto"}));
  expect_same_state(run_dir("online") / "checkpoints/step-4",
                    run_dir("parts") / "checkpoints/step-4");

  const at::Tensor by_run = drawn({"--run", run_dir("online").string()}, "by-run");
  const Arguments base = {"--model", pipeline().string(), "--guidance", "1"};
  EXPECT_GT(ops::relative_error(drawn(base, "by-base"), by_run), 1e-2);
  for (const std::string names : {"own", "diffusers"}) {
    const std::string adapter = path(names);
    run_well({"convert", run_dir("online").string(), "--adapter", names, "--to", adapter});
    // Merged into the weights, which rounds otherwise than beside them.
    EXPECT_LT(ops::relative_error(drawn(joined(base, {"--lora", adapter}), "by-" + names), by_run),
              tolerance::kFewRoundings)
        << names;
  }
}

TEST_F(CogVideoXTest, LearnsToGoOnFromAFirstFrame) {
  const Arguments shown =
      online({"checkpoint.init_from=" + (pipeline("cogvideox_15_i2v") / "transformer").string(),
              "model.given_embedders=true", "model.rotary_3d=true", "model.patch_frames=2",
              "model.base_grid=[3,4,4]", "model.ofs=2", "train.steps=2"});
  train_well(run_dir("shown"), joined(shown, {"frame_masks.weights.i2v_head=1"}));
  EXPECT_THAT(
      run_kinora(joined({"train", recipe().string(), "run.dir=" + run_dir("none").string()}, shown),
                 folder())
          .err,
      HasSubstr("goes on from first frames alone"));
}

}  // namespace cogvideox_test
}  // namespace kinora::apps
