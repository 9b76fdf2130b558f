#include "kinora/models/autoencoders/hunyuan_vae.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"

namespace kinora::models {
namespace hunyuan_vae_test {

/// Of the fixture.
HunyuanVaeConfig small() {
  return {.latent_channels = 2,
          .block_out_channels = {8, 8, 16, 16},
          .layers_per_block = 1,
          .norm_num_groups = 4,
          .scaling_factor = 0.5};
}

TEST(HunyuanVaeTest, EqualsDiffusersAndItsGradients) {
  const Fixture fixture("hunyuan_vae.safetensors");
  HunyuanVae model(small());
  expect_case(fixture, "encode", model, {2, 3, 9, 16, 24});
  expect_case(fixture, "decode", model, {1, 2, 3, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 16, 24});
  expect_image(fixture, "decode_image", model, {1, 2, 1, 2, 3});
}

TEST(HunyuanVaeTest, PiecesAreTheWhole) {
  HunyuanVae model(small());
  for (const int64_t frames : {1, 2, 3}) {
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                              {1, 2, frames, 5, 2});
  }
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                            {2, 3, 5, 40, 16});
}

// Without gradients upsampling computes from the smaller clip.
TEST(HunyuanVaeTest, DecodesWithoutGradientsAsWithThem) {
  HunyuanVae model(small());
  expect_same_without_gradients(model, {{2, 2, 1, 3, 4}, {2, 2, 2, 3, 4}, {2, 2, 4, 3, 4}});
}

// Budgets below the largest activation: the last levels pass window by window, once for each norm.
TEST(HunyuanVaeTest, WindowsAreTheWhole) {
  const at::NoGradGuard no_grad;
  HunyuanVae model(small());
  set_formula_weights(model, at::kDouble);
  const int64_t frames = 5;
  const int64_t rows = 12;
  const at::Tensor latents = formula_values("windows", {2, 2, frames, rows, 3}).to(at::kDouble);
  const at::Tensor expected = model.decode(latents);
  const ClipSize size = {
      .batch = 2, .channels = 2, .frames = frames, .rows = rows, .columns = 3, .element_bytes = 8};
  const ClipSize largest = {.batch = 2,
                            .channels = 8,
                            .frames = 4 * frames - 3,
                            .rows = 8 * rows,
                            .columns = 24,
                            .element_bytes = 8};
  for (const int64_t percent : {95, 80}) {
    model.set_memory_budget(largest.bytes() * percent / 100);
    EXPECT_FALSE(model.decode_plan(size, false).on_host) << percent;
    EXPECT_LT(relative_error(model.decode(latents), expected), 1e-12) << percent;
  }
}

TEST(HunyuanVaeTest, AClipOf720RowsFitsInto24GBWithoutHostMemory) {
  // 129 frames in bf16, of which one activation takes 30 GB, where norms are kernels.
  HunyuanVae model({});
  model.set_memory_budget(int64_t{21} << 30);
  const nn::BandPlan plan = model.decode_plan({.channels = 16,
                                               .frames = 33,
                                               .rows = 90,
                                               .columns = 160,
                                               .element_bytes = 2,
                                               .one_pass_norms = true},
                                              false);
  EXPECT_FALSE(plan.on_host);
}

TEST(HunyuanVaeTest, TheBudgetHolds) {
  // Two clips: of one, small ones, the CPU's library unfolds convolutions, which takes 27 times
  // more. 55 % are fewer bytes than half of what the whole took when each convolution had a normed
  // copy beside the one with edges.
  expect_budgets_hold<HunyuanVae>(
      small(), {.batch = 2, .channels = 2, .frames = 2, .rows = 12, .columns = 3}, {90, 70, 55});
}

TEST(HunyuanVaeTest, AClipOf768PixelsFitsInto24GB) {
  // 65 frames in bf16: the planned activations, of which nothing leaves the GPU.
  HunyuanVae model({});
  model.set_memory_budget(24'000'000'000);
  const nn::BandPlan plan = model.decode_plan(
      {.channels = 16, .frames = 17, .rows = 96, .columns = 96, .element_bytes = 2}, false);
  EXPECT_FALSE(plan.on_host);
  EXPECT_LE(plan.stages[0].bands, 48);  // of 16 rows or more, of which the two around are an eighth
}

TEST(HunyuanVaeTest, AnImageIsAClipOfOneFrame) {
  const at::NoGradGuard no_grad;
  HunyuanVae model(small());
  set_formula_weights(model);
  const at::Tensor image = formula_values("image", {2, 3, 8, 16});
  const at::Tensor latent = model.encode(image).mean;
  EXPECT_EQ(latent.sizes(), (std::vector<int64_t>{2, 2, 1, 2}));
  EXPECT_TRUE(latent.equal(model.encode(image.unsqueeze(2)).mean.squeeze(2)));
  EXPECT_EQ(model.decode(latent).sizes(), image.sizes());
}

TEST(HunyuanVaeTest, FramesAndLatentFrames) {
  const HunyuanVae model(small());
  EXPECT_EQ(latent_frames(model.space(), 1), 1);
  EXPECT_EQ(latent_frames(model.space(), 5), 2);
  EXPECT_EQ(latent_frames(model.space(), 129), 33);
  EXPECT_EQ(pixel_frames(model.space(), 33), 129);
}

TEST(HunyuanVaeTest, WhatDoesNotFitIsNamed) {
  HunyuanVae model(small());
  const auto message = [&](const std::vector<int64_t>& shape) {
    return error_of(ErrorKind::kShape,
                    [&] { (void)model.encode(formula_values("x", shape)).mean; });
  };
  EXPECT_NE(message({1, 3, 16, 8, 8})
                .find("16 frames do not become whole latent frames. Hint: "
                      "13 or 17 frames"),
            std::string::npos);
  EXPECT_NE(message({1, 3, 5, 8, 12}).find("multiples of 8, got [1, 3, 5, 8, 12]"),
            std::string::npos);
  HunyuanVaeConfig config = small();
  config.temporal_compression_ratio = 3;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { HunyuanVae odd(config); })
                .find("temporal_compression_ratio must be a power of two"),
            std::string::npos);
}

}  // namespace hunyuan_vae_test
}  // namespace kinora::models
