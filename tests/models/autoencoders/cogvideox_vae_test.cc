#include "kinora/models/autoencoders/cogvideox_vae.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"

namespace kinora::models {
namespace cogvideox_vae_test {

using testing::HasSubstr;

/// Of the fixture.
CogVideoXVaeConfig small() {
  return {.latent_channels = 2,
          .block_out_channels = {8, 8, 16, 16},
          .layers_per_block = 1,
          .norm_num_groups = 4,
          .scaling_factor = 0.5};
}

// Clips of two pieces each, of which the first one has a frame more.
TEST(CogVideoXVaeTest, EqualsDiffusersAndItsGradients) {
  const Fixture fixture("cogvideox_vae.safetensors");
  CogVideoXVae model(small());
  expect_case(fixture, "encode", model, {2, 3, 17, 16, 24});
  expect_case(fixture, "decode", model, {1, 2, 5, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 16, 24});
  expect_image(fixture, "decode_image", model, {1, 2, 1, 2, 3});
}

TEST(CogVideoXVaeTest, AnEvenNumberOfLatentFramesHasNoFirstOne) {
  const at::NoGradGuard no_grad;
  const Fixture fixture("cogvideox_vae.safetensors");
  CogVideoXVae model(small());
  set_formula_weights(model, at::kDouble);
  const at::Tensor clip =
      raw_decode(model, formula_values("decode_even.input", {1, 2, 4, 2, 3}).to(at::kDouble));
  EXPECT_EQ(clip.size(2), 16);
  EXPECT_LT(relative_error(clip, fixture.tensor("decode_even.output")), 1e-6);
}

TEST(CogVideoXVaeTest, BandsOfRowsAreTheWhole) {
  CogVideoXVae model(small());
  for (const int64_t frames : {1, 3, 5}) {
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                              {1, 2, frames, 5, 2});
  }
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                            {2, 3, 5, 40, 16});
}

TEST(CogVideoXVaeTest, TheBudgetHolds) {
  // Of half as much its bands go to the host's memory: what is normed lies whole beside what skips.
  expect_budgets_hold<CogVideoXVae>(
      small(), {.batch = 2, .channels = 2, .frames = 3, .rows = 12, .columns = 3}, {90, 70});
}

TEST(CogVideoXVaeTest, AClipOf480RowsFitsInto24GB) {
  // 49 frames in bf16: nothing leaves the GPU.
  CogVideoXVae model({});
  model.set_memory_budget(24'000'000'000);
  const nn::BandPlan plan = model.decode_plan(
      {.channels = 16, .frames = 13, .rows = 60, .columns = 90, .element_bytes = 2}, false);
  EXPECT_FALSE(plan.on_host);
  EXPECT_LE(plan.stages[0].bands, 4);
}

TEST(CogVideoXVaeTest, FramesAndLatentFrames) {
  const CogVideoXVae model(small());
  EXPECT_EQ(model.space().compression, 8);
  EXPECT_EQ(latent_frames(model.space(), 49), 13);
  EXPECT_EQ(latent_frames(model.space(), 1), 1);
  EXPECT_EQ(pixel_frames(model.space(), 21), 81);
}

TEST(CogVideoXVaeTest, WhatIsShownMayBeDividedByTheScale) {
  const at::Tensor latents = formula_values("latents", {1, 2, 1, 2, 2});
  const CogVideoXVae model(small());
  EXPECT_TRUE(as_shown(model.space(), latents).equal(latents));
  CogVideoXVaeConfig config = small();
  config.invert_scale_latents = true;
  const CogVideoXVae inverted(config);
  // Raw latents times 0.5, which become raw latents times 2.
  EXPECT_TRUE(as_shown(inverted.space(), latents).equal(latents * 4.0));
}

TEST(CogVideoXVaeTest, WhatDoesNotFitIsNamed) {
  CogVideoXVaeConfig config = small();
  config.temporal_compression_ratio = 3;
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { CogVideoXVae odd(config); }),
      HasSubstr("temporal_compression_ratio must be a power of two below 2^4 for 4 blocks"));
}

}  // namespace cogvideox_vae_test
}  // namespace kinora::models
