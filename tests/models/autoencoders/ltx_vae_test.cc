#include "kinora/models/autoencoders/ltx_vae.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"
#include "tests/models/formula_values.h"

namespace kinora::models {
namespace ltx_vae_test {

using testing::HasSubstr;

/// Of the fixture ltx_vae: as 0.9's.
LtxVaeConfig small() {
  return {.latent_channels = 4,
          .block_out_channels = {4, 6, 8},
          .decoder_block_out_channels = {4, 6, 8},
          .layers_per_block = {1, 1, 1, 1},
          .decoder_layers_per_block = {1, 1, 2, 1},
          .spatio_temporal_scaling = {true, true, false},
          .decoder_spatio_temporal_scaling = {true, true, false},
          .decoder_inject_noise = {false, false, false, false},
          .patch_size = 2,
          .latents_mean = {0.5, -0.25, 0.125, 0.0},
          .latents_std = {2.0, 0.5, 1.0, 1.5}};
}

/// Of ltx_vae_told: the encoder as 0.9.5's, the decoder as 0.9.1's.
LtxVaeConfig told() {
  return {
      .latent_channels = 4,
      .block_out_channels = {4, 8, 8, 16},
      .widens_by_halving = true,
      .decoder_block_out_channels = {8, 16},
      .layers_per_block = {1, 1, 1, 2},
      .decoder_layers_per_block = {1, 2, 1},
      .spatio_temporal_scaling = {true, true, true},
      .decoder_spatio_temporal_scaling = {true, true},
      .decoder_inject_noise = {false, true, true},
      .downsample_type = {LtxHalving::kSpatial, LtxHalving::kTemporal, LtxHalving::kSpatiotemporal},
      .upsample_residual = {true, true},
      .upsample_factor = {2, 2},
      .timestep_conditioning = true,
      .patch_size = 2,
      .encoder_causal = false,
      .decoder_causal = true};
}

void expect_as_diffusers(const char* name, LtxVae& model) {
  const Fixture fixture(std::string(name) + ".safetensors");
  expect_case(fixture, "encode", model, {2, 3, 5, 16, 24});
  expect_case(fixture, "decode", model, {1, 4, 3, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 16, 24});
  expect_image(fixture, "decode_image", model, {1, 4, 1, 2, 3});
}

TEST(LtxVaeTest, EqualsDiffusersAndItsGradients) {
  LtxVae model(small());
  EXPECT_EQ(model.space().compression, 8);
  EXPECT_EQ(model.space().frame_compression, 4);
  expect_as_diffusers("ltx_vae", model);
}

TEST(LtxVaeTest, TheOneThatIsToldANoiseLevelEqualsDiffusersAndItsGradients) {
  LtxVae model(told());
  EXPECT_EQ(model.space().compression, 8);
  EXPECT_EQ(model.space().frame_compression, 4);
  model.set_decode_noise({.level = 0.05});
  expect_as_diffusers("ltx_vae_told", model);
}

TEST(LtxVaeTest, BandsOfRowsAreTheWhole) {
  for (const LtxVaeConfig& config : {small(), told()}) {
    LtxVae model(config);
    if (config.timestep_conditioning) {
      model.set_decode_noise({.level = 0.05, .mixed = 0.25});
    }
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                              {1, 4, 3, 5, 2});
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                              {2, 3, 5, 40, 16});
  }
}

TEST(LtxVaeTest, TheBudgetHolds) {
  // What comes out, in one piece, is small beside the activations, as in the published ones.
  LtxVaeConfig first = small();
  first.decoder_block_out_channels = {16, 16, 16};
  first.decoder_layers_per_block = {3, 1, 1, 1};
  LtxVaeConfig later = told();
  later.decoder_block_out_channels = {32, 64};
  for (const LtxVaeConfig& config : {first, later}) {
    expect_budgets_hold<LtxVae>(config,
                                {.batch = 2, .channels = 4, .frames = 4, .rows = 16, .columns = 4});
  }
}

TEST(LtxVaeTest, LatentsAreMixedWithNoise) {
  const at::NoGradGuard no_grad;
  LtxVae model(told());
  set_formula_weights(model);
  const at::Tensor z = formula_values("z", {2, 4, 2, 2, 3});
  const at::Tensor noise = constant_noise("decoder.noise", {1, 4, 2, 2, 3}, at::kCPU);
  model.set_decode_noise({.level = 0.25});
  const at::Tensor mixed = model.decode(z * 0.75 + noise * 0.25);
  model.set_decode_noise({.level = 0.25, .mixed = 0.25});
  EXPECT_TRUE(model.decode(z).allclose(mixed, 1e-5, 1e-6));
  const at::Tensor again = model.decode(z);
  EXPECT_TRUE(model.decode(z).equal(again));
}

TEST(LtxVaeTest, PublishedOnesHaveTheirParameters) {
  const auto count = [](const LtxVaeConfig& config) {
    LtxVae model(config);
    EXPECT_EQ(model.space().compression, 32);
    EXPECT_EQ(model.space().frame_compression, 8);
    int64_t parameters = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      parameters += parameter->numel();
    }
    return parameters;
  };
  LtxVaeConfig later;  // 0.9.1
  later.decoder_block_out_channels = {256, 512, 1024};
  later.decoder_layers_per_block = {5, 6, 7, 8};
  later.decoder_spatio_temporal_scaling = {true, true, true};
  later.decoder_inject_noise = {true, true, true, false};
  later.upsample_residual = {true, true, true};
  later.upsample_factor = {2, 2, 2};
  later.timestep_conditioning = true;
  LtxVaeConfig last = later;  // 0.9.5
  last.block_out_channels = {128, 256, 512, 1024, 2048};
  last.widens_by_halving = true;
  last.layers_per_block = {4, 6, 6, 2, 2};
  last.spatio_temporal_scaling = {true, true, true, true};
  last.downsample_type = {LtxHalving::kSpatial, LtxHalving::kTemporal, LtxHalving::kSpatiotemporal,
                          LtxHalving::kSpatiotemporal};
  last.decoder_layers_per_block = {5, 5, 5, 5};
  last.decoder_inject_noise = {false, false, false, false};
  // diffusers' class with the published configurations.
  EXPECT_EQ(count({}), 419'193'649);
  EXPECT_EQ(count(later), 934'976'434);
  EXPECT_EQ(count(last), 1'246'913'522);
}

TEST(LtxVaeTest, WhatDoesNotFitIsNamed) {
  LtxVae model(small());
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         (void)model.encode(formula_values("x", {1, 3, 7, 8, 8}));
                       }),
              HasSubstr("7 frames do not become whole latent frames. Hint: 5 or 9 frames"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { model.set_decode_noise({.level = 0.1}); }),
              HasSubstr("a decoder that is not told how noisy latents are, got 0.1 and 0"));
  const auto refusal = [](const LtxVaeConfig& config) {
    return error_of(ErrorKind::kConfig, [&] { LtxVae odd(config); });
  };
  LtxVaeConfig config = small();
  config.latents_std = {1.0};
  EXPECT_THAT(refusal(config), HasSubstr("latents_std must have one value for each of 4 channels"));
  config = small();
  config.layers_per_block = {1, 1};
  EXPECT_THAT(refusal(config), HasSubstr("layers_per_block must have 4 entries, got 2"));
  config = small();
  config.decoder_spatio_temporal_scaling = {true, false, false};
  EXPECT_THAT(refusal(config), HasSubstr("as many times larger"));
  config = small();
  config.timestep_conditioning = true;
  EXPECT_THAT(refusal(config), HasSubstr("must keep its channels where it has a noise level"));
  config = told();
  config.block_out_channels = {4, 8, 10, 16};
  EXPECT_THAT(refusal(config), HasSubstr("which does not divide"));
}

}  // namespace ltx_vae_test
}  // namespace kinora::models
