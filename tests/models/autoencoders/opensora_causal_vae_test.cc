#include "kinora/models/autoencoders/opensora_causal_vae.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"

namespace kinora::models {
namespace opensora_causal_vae_test {

/// Of the fixture.
OpenSoraCausalVaeConfig small_causal() {
  return {.latent_channels = 2,
          .channels = 4,
          .channel_multipliers = {1, 2, 2},
          .num_res_blocks = 1,
          .temporal_downsample = {false, true},
          .num_groups = 2,
          .micro_frame_size = 5,
          .shift = {-0.5, 0.25},
          .scale = {2.0, 4.0}};
}

TEST(OpenSoraCausalVaeTest, EqualsTheReferenceAndItsGradients) {
  const Fixture fixture("opensora_causal_vae.safetensors");
  OpenSoraCausalVae model(small_causal());
  expect_case(fixture, "encode", model, {2, 3, 7, 8, 12});
  expect_case(fixture, "decode", model, {1, 2, 5, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 8, 12});
  expect_image(fixture, "decode_image", model, {1, 2, 1, 2, 3});
}

TEST(OpenSoraCausalVaeTest, DecodesWithoutGradientsAsWithThem) {
  OpenSoraCausalVae model(small_causal());
  expect_same_without_gradients(model, {{2, 2, 1, 3, 4}, {2, 2, 3, 3, 4}, {2, 2, 5, 3, 4}});
}

TEST(OpenSoraCausalVaeTest, PiecesAreTheWhole) {
  OpenSoraCausalVae model(small_causal());
  for (const int64_t latents : {1, 3, 5}) {  // an image, a chunk, two
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                              {1, 2, latents, 5, 2});
  }
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                            {2, 3, 7, 20, 8});
}

TEST(OpenSoraCausalVaeTest, TheBudgetHolds) {
  expect_budgets_hold<OpenSoraCausalVae>(
      small_causal(), {.batch = 2, .channels = 2, .frames = 2, .rows = 24, .columns = 3});
}

TEST(OpenSoraCausalVaeTest, AChunkOf720pFitsInto24GB) {
  OpenSoraCausalVae model({});
  model.set_memory_budget(24'000'000'000);
  const nn::BandPlan plan = model.decode_plan(
      {.channels = 16, .frames = 5, .rows = 90, .columns = 160, .element_bytes = 2}, false);
  EXPECT_FALSE(plan.on_host);
  EXPECT_LE(plan.stages[0].bands, 45);
}

TEST(OpenSoraCausalVaeTest, ChunksShareAFrame) {
  const at::NoGradGuard no_grad;
  OpenSoraCausalVae model(small_causal());
  set_formula_weights(model, at::kDouble);
  const at::Tensor clip = formula_values("clip", {1, 3, 7, 8, 8}).to(at::kDouble);
  const at::Tensor whole = model.encode(clip).mean;
  const at::Tensor first = model.encode(clip.narrow(2, 0, 5)).mean;
  const at::Tensor second = model.encode(clip.narrow(2, 4, 3)).mean;
  EXPECT_LT(relative_error(whole, at::cat({first, second}, 2)), 1e-12);
  const at::Tensor decoded = model.decode(whole);
  EXPECT_EQ(decoded.sizes(), clip.sizes());
  const at::Tensor early = model.decode(first);
  const at::Tensor late = model.decode(second);
  const at::Tensor shared = (early.narrow(2, 4, 1) + late.narrow(2, 0, 1)) / 2.0;
  EXPECT_LT(
      relative_error(decoded, at::cat({early.narrow(2, 0, 4), shared, late.narrow(2, 1, 2)}, 2)),
      1e-12);
}

// opensora/models/vae_v1_3/vae.py: get_latent_size, and what decode_micro_frame makes of it.
TEST(OpenSoraCausalVaeTest, FramesOfTheOriginal) {
  const OpenSoraCausalVae model({});
  const std::vector<std::pair<int64_t, int64_t>> published = {
      {1, 1},   {5, 2},   {17, 5},  {21, 7},  {33, 10},
      {49, 15}, {65, 20}, {81, 25}, {97, 30}, {113, 35}};
  for (const auto& [frames, latents] : published) {
    EXPECT_EQ(latent_frames(model.space(), frames), latents);
    EXPECT_EQ(pixel_frames(model.space(), latents), frames);
  }
  EXPECT_EQ(pixel_frames(model.space(), 6), 17) << "a chunk of one latent frame adds no frame";
  EXPECT_NE(error_of(ErrorKind::kShape, [&] { (void)latent_frames(model.space(), 51); })
                .find("Hint: 49 or 53 frames"),
            std::string::npos);
}

TEST(OpenSoraCausalVaeTest, SizesThatDoNotFitAreNamed) {
  const auto message = [](const OpenSoraCausalVaeConfig& config) {
    return error_of(ErrorKind::kConfig, [&] { OpenSoraCausalVae odd(config); });
  };
  OpenSoraCausalVaeConfig config = small_causal();
  config.micro_frame_size = 4;
  EXPECT_NE(message(config).find("must be 1 + a multiple of 2 and not 1, got 4"),
            std::string::npos);
  config = small_causal();
  config.scale = {1.0, 2.0, 3.0};
  EXPECT_NE(message(config).find("scale must have one value for all or for each of 2 channels, "
                                 "got 3"),
            std::string::npos);
  config = small_causal();
  config.temporal_downsample = {true};
  EXPECT_NE(message(config).find("one halving less than multipliers, got 1 blocks, 1 and 3"),
            std::string::npos);
}

}  // namespace opensora_causal_vae_test
}  // namespace kinora::models
