#include "kinora/models/autoencoders/opensora_vae.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"

namespace kinora::models {
namespace opensora_vae_test {

/// Of the fixture.
OpenSoraVaeConfig small() {
  OpenSoraVaeConfig config;
  config.spatial.block_out_channels = {4, 8};
  config.spatial.layers_per_block = 1;
  config.spatial.latent_channels = 2;
  config.spatial.norm_num_groups = 2;
  config.temporal = {.channels = 2,
                     .filters = 4,
                     .num_res_blocks = 1,
                     .channel_multipliers = {1, 2, 2},
                     .temporal_downsample = {false, true},
                     .num_groups = 2};
  config.micro_frame_size = 5;
  config.shift = {-0.5, 0.25};
  config.scale = {2.0, 4.0};
  return config;
}

TEST(OpenSoraVaeTest, EqualsTheReferenceAndItsGradients) {
  const Fixture fixture("opensora_vae.safetensors");
  OpenSoraVae model(small());
  expect_case(fixture, "encode", model, {1, 3, 8, 4, 6});
  expect_case(fixture, "decode", model, {1, 2, 5, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 4, 6});
  expect_image(fixture, "decode_image", model, {1, 2, 1, 2, 3});
}

TEST(OpenSoraVaeTest, PiecesAreTheWhole) {
  OpenSoraVae model(small());
  // Less than the spatial or the temporal one can do with is refused: the larger need counts.
  const int64_t budget = 200000;
  expect_same_in_pieces(model, budget, [&](const at::Tensor& x) { return model.decode(x); },
                        {1, 2, 5, 24, 2});
  expect_same_in_pieces(model, budget, [&](const at::Tensor& x) { return raw_encode(model, x); },
                        {1, 3, 8, 48, 4});
}

TEST(OpenSoraVaeTest, ChunksKnowNothingOfEachOther) {
  const at::NoGradGuard no_grad;
  OpenSoraVae model(small());
  set_formula_weights(model);
  const at::Tensor clip = formula_values("clip", {1, 3, 8, 4, 4});
  const at::Tensor whole = model.encode(clip).mean;
  const at::Tensor parts = at::cat(
      {model.encode(clip.narrow(2, 0, 5)).mean, model.encode(clip.narrow(2, 5, 3)).mean}, 2);
  EXPECT_LT(relative_error(whole, parts), 1e-6);
  EXPECT_EQ(model.decode(whole).sizes(), clip.sizes());
}

TEST(OpenSoraVaeTest, FramesOfTheOriginal) {
  LatentSpace space;
  space.frame_compression = 4;
  space.first_frame_alone = true;
  space.chunk_frames = 17;
  const std::vector<std::pair<int64_t, int64_t>> published = {
      {1, 1}, {17, 5}, {34, 10}, {51, 15}, {102, 30}, {204, 60}, {408, 120}, {18, 6}};
  for (const auto& [frames, latents] : published) {
    EXPECT_EQ(latent_frames(space, frames), latents);
    EXPECT_EQ(pixel_frames(space, latents), frames);
  }
  EXPECT_NE(error_of(ErrorKind::kShape, [&] { (void)latent_frames(space, 16); })
                .find("Hint: 13 or 17 frames"),
            std::string::npos);
  EXPECT_NE(error_of(ErrorKind::kShape, [&] { (void)latent_frames(space, 35 + 1); })
                .find("Hint: 35 or 39 frames"),
            std::string::npos);
}

TEST(OpenSoraVaeTest, SizesThatDoNotFitAreNamed) {
  OpenSoraVaeConfig config = small();
  config.micro_frame_size = 4;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { OpenSoraVae odd(config); })
                .find("micro_frame_size must be 1 + a multiple of 2, got 4"),
            std::string::npos);
}

}  // namespace opensora_vae_test
}  // namespace kinora::models
