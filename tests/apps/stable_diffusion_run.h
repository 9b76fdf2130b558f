#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/image.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"
#include "tests/places.h"

/// What tests share that train the tiny pipeline of Stable Diffusion that diffusers wrote
/// (tools/reference/make_pipeline_fixtures.py).
namespace kinora::apps {

/// Its folder.
inline const std::filesystem::path kPipeline = source_path("tests/inference/data/sd1");

inline constexpr const char* kUnetRecipe = R"(model:
  architecture: unet
  in_channels: 4
  learn_sigma: false
  text_channels: 16
  text_tokens: 77
  unet: {channels: [8, 16], resnets: 1, depths: [1, 0], middle_depth: 1, heads: [2, 2], norm_groups: 4}
data: {source: captions, height: 64, width: 64, captions: random, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {betas: scaled_linear, beta_start: 0.00085, beta_end: 0.012}
train: {steps: 6, global_batch: 8, micro_batch: 4, threads: 1, device: cpu, label_dropout: 0.3}
lr: {value: 1.0e-3}
ema: {decays: []}
checkpoint: {every: 3}
sample: {method: ddim, steps: 4, spacing: leading, steps_offset: 1, end_clean: false, guidance: 7.5}
)";

class StableDiffusionTest : public RunTest {
 protected:
  StableDiffusionTest() {
    std::filesystem::create_directories(folder() / "photos");
    std::filesystem::create_directories(folder() / "class");
    for (int i = 0; i < 12; ++i) {
      const std::string name = "photos/" + std::to_string(i);
      write_picture(folder() / (name + ".png"), i, 64, 64);
      write_text(folder() / (name + ".txt"),
                 "A <b>Picture</b> of number " + std::to_string(i) + "\nanother of its kind\n");
    }
    write_text(recipe(), kUnetRecipe);
  }

  [[nodiscard]] Arguments online(const Arguments& more = {}) const {
    return joined(
        {"data.path=[" + path("photos") + "]", "autoencoder.path=" + (kPipeline / "vae").string(),
         "text.encoder=" + kPipeline.string()},
        more);
  }
  [[nodiscard]] Arguments cached(const Arguments& more = {}) const {
    return joined({"data.source=latents", "data.path=[" + path("cache") + "]", "data.text=file",
                   "text.encoder=" + kPipeline.string()},
                  more);
  }
  [[nodiscard]] Arguments tuned(const Arguments& more = {}) const {
    return online(joined({"checkpoint.init_from=" + (kPipeline / "unet").string()}, more));
  }
  /// Other pictures, without captions, beside those of a step.
  [[nodiscard]] Arguments prior() const {
    for (int i = 0; i < 5; ++i) {
      write_picture(folder() / "class" / ("image-0000" + std::to_string(i) + ".png"), 40 + i, 64,
                    64);
    }
    write_picture(folder() / "class/grid.png", 9, 64, 64);
    return {"prior_data.weight=0.5",     "prior_data.source=captions",
            "prior_data.text=tokens",    "prior_data.path=[" + path("class") + "]",
            "prior_data.height=64",      "prior_data.width=64",
            "prior_data.global_batch=4", "prior_data.caption=a picture",
            "prior_data.threads=1"};
  }
  /// Two pictures of `whose`.
  [[nodiscard]] std::vector<io::Image> drawn(const Arguments& whose,
                                             const std::string& name) const {
    run_well(joined({"sample", "--prompt", "a red circle", "Two Dogs", "--seed", "3", "--device",
                     "cpu", "--threads", "1", "--steps", "4", "--out", path(name)},
                    whose));
    return {read_image(folder() / name / "image-00000.png"),
            read_image(folder() / name / "image-00001.png")};
  }
  static at::Tensor null_text(const std::filesystem::path& checkpoint) {
    return checkpoint::WeightsFile::open(checkpoint / "buffers.safetensors").read("null_text");
  }
};

/// The recipe's, for the pipeline's folder, which has another.
inline const Arguments kSampler = {
    "--set", "sample.method=ddim",    "--set", "sample.spacing=leading",
    "--set", "sample.steps_offset=1", "--set", "autoencoder.precision=fp32"};

inline void expect_close(const std::vector<io::Image>& left, const std::vector<io::Image>& right) {
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_LE(difference_of(left[i], right[i]).most, 1) << i;
  }
}

}  // namespace kinora::apps
