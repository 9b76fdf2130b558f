#include "kinora/models/autoencoders/wan_vae.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kinora/models/autoencoders/autoencoder_names.h"
#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"
#include "tests/places.h"

namespace kinora::models {
namespace wan_vae_test {

using testing::HasSubstr;

/// Of the fixture.
WanVaeConfig small() {
  return {.base_dim = 4,
          .z_dim = 2,
          .num_res_blocks = 1,
          .latents_mean = {0.5, -0.25},
          .latents_std = {2.0, 0.5}};
}

TEST(WanVaeTest, EqualsDiffusersAndItsGradients) {
  const Fixture fixture("wan_vae.safetensors");
  WanVae model(small());
  expect_case(fixture, "encode", model, {2, 3, 9, 16, 24});
  expect_case(fixture, "decode", model, {1, 2, 4, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 16, 24});
  expect_image(fixture, "decode_image", model, {1, 2, 1, 2, 3});
}

/// Of the fixture of 2.2's.
WanVaeConfig residual() {
  WanVaeConfig config = small();
  config.decoder_base_dim = 6;
  config.is_residual = true;
  config.patch_size = 2;
  return config;
}

TEST(WanVaeTest, TheResidualOneEqualsDiffusersAndItsGradients) {
  const Fixture fixture("wan_vae_residual.safetensors");
  WanVae model(residual());
  EXPECT_EQ(model.space().compression, 16);
  expect_case(fixture, "encode", model, {1, 3, 9, 32, 48});
  expect_case(fixture, "decode", model, {1, 2, 4, 2, 3});
  expect_image(fixture, "encode_image", model, {1, 3, 1, 32, 48});
  expect_image(fixture, "decode_image", model, {1, 2, 1, 2, 3});
}

TEST(WanVaeTest, DecodesWithoutGradientsAsWithThem) {
  WanVae model(small());
  expect_same_without_gradients(model, {{2, 2, 1, 3, 4}, {2, 2, 4, 3, 4}});
  WanVae other(residual());
  expect_same_without_gradients(other, {{2, 2, 1, 3, 4}, {2, 2, 4, 3, 4}});
}

TEST(WanVaeTest, BandsOfRowsOfTheResidualOneAreTheWhole) {
  WanVae model(residual());
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                            {1, 2, 3, 5, 2});
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                            {2, 3, 5, 80, 32});
}

TEST(WanVaeTest, BandsOfRowsAreTheWhole) {
  WanVae model(small());
  for (const int64_t frames : {1, 2, 3}) {
    expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                              {1, 2, frames, 5, 2});
  }
  expect_same_in_all_pieces(model, [&](const at::Tensor& x) { return raw_encode(model, x); },
                            {2, 3, 5, 40, 16});
}

/// What `function` makes within the least budget that planning admits, without gradients: frame by
/// frame and row by row.
void expect_same_in_least_pieces(WanVae& model, const TensorFunction& function,
                                 const std::vector<int64_t>& shape) {
  const at::NoGradGuard no_grad;
  const at::Tensor input = formula_values("pieces.input", shape).to(at::kDouble);
  model.set_memory_budget(0);
  const at::Tensor expected = function(input);
  model.set_memory_budget(1);
  const std::string error = error_of(ErrorKind::kConfig, [&] { (void)function(input); });
  const std::string hint = "must be ";
  ASSERT_NE(error.find(hint), std::string::npos) << error;
  const int64_t least = std::stoll(error.substr(error.find(hint) + hint.size()));
  for (const int64_t budget : {least, 4 * least, 16 * least, 64 * least}) {
    model.set_memory_budget(budget);
    EXPECT_LT(relative_error(function(input), expected), 1e-13) << budget;
  }
}

TEST(WanVaeTest, PiecesOfFramesAreTheWhole) {
  WanVae model(small());
  set_formula_weights(model, at::kDouble);
  for (const int64_t frames : {1, 2, 3, 7}) {
    expect_same_in_least_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                                {1, 2, frames, 5, 2});
    expect_same_in_least_pieces(model, [&](const at::Tensor& x) { return model.encode(x).mean; },
                                {2, 3, 4 * frames - 3, 40, 16});
  }
}

TEST(WanVaeTest, PiecesOfFramesOfTheResidualOneAreTheWhole) {
  WanVae model(residual());
  set_formula_weights(model, at::kDouble);
  for (const int64_t frames : {1, 2, 7}) {
    expect_same_in_least_pieces(model, [&](const at::Tensor& x) { return model.decode(x); },
                                {1, 2, frames, 5, 2});
    expect_same_in_least_pieces(model, [&](const at::Tensor& x) { return model.encode(x).mean; },
                                {2, 3, 4 * frames - 3, 80, 32});
  }
}

TEST(WanVaeTest, TheBudgetHolds) {
  // Long enough that frames come in pieces, and rows in bands where gradients are wanted.
  expect_budgets_hold<WanVae>(small(),
                              {.batch = 2, .channels = 2, .frames = 6, .rows = 12, .columns = 3});
}

TEST(WanVaeTest, AClipOf720RowsFitsInto24GB) {
  // 129 frames in bf16: the planned activations, of which nothing leaves the GPU and none is cut.
  const at::NoGradGuard no_grad;
  WanVae model({});
  model.set_memory_budget(24'000'000'000);
  const ClipSize latents = {
      .channels = 16, .frames = 33, .rows = 90, .columns = 160, .element_bytes = 2};
  const nn::BandPlan plan = model.decode_plan(latents, false);
  EXPECT_FALSE(plan.on_host);
  EXPECT_EQ(plan.stages[0].bands, 1);
  EXPECT_GE(model.decode_piece(latents), 1);
}

// As diffusers converts Wan 2.1's own file (tools/make_clip_autoencoder_fixtures.py).
TEST(WanVaeTest, AuthorsNamesAreKnown) {
  std::ifstream file(source_path("tests/models/data/wan_vae_names.json"));
  const auto names = nlohmann::json::parse(file).get<std::map<std::string, std::string>>();
  std::set<std::string> found;
  for (const auto& [theirs, path] : names) {
    EXPECT_EQ(wan_vae_path(theirs).value_or("nothing"), path) << theirs;
    found.insert(path);
  }
  WanVae model(WanVaeConfig{});
  int64_t parameters = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    EXPECT_TRUE(found.contains(path)) << path;
    EXPECT_FALSE(wan_vae_path(path).has_value()) << path;
    parameters += parameter->numel();
  }
  EXPECT_EQ(model.named_parameters().size(), names.size());
  EXPECT_EQ(parameters, 126'892'531);  // as diffusers'
}

TEST(WanVaeTest, FramesAndLatentFrames) {
  const WanVae model(WanVaeConfig{});
  EXPECT_EQ(model.space().compression, 8);
  EXPECT_EQ(latent_frames(model.space(), 1), 1);
  EXPECT_EQ(latent_frames(model.space(), 81), 21);
  EXPECT_EQ(pixel_frames(model.space(), 21), 81);
}

TEST(WanVaeTest, WhatDoesNotFitIsNamed) {
  WanVae model(small());
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         (void)model.encode(formula_values("x", {1, 3, 16, 8, 8}));
                       }),
              HasSubstr("16 frames do not become whole latent frames. Hint: 13 or 17 frames"));
  WanVaeConfig config = small();
  config.latents_std = {1.0};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { WanVae odd(config); }),
              HasSubstr("latents_std must have one value for each of 2 channels, got 1"));
  config = small();
  config.temporal_downsample = {true};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { WanVae odd(config); }),
              HasSubstr("one halving less than multipliers"));
}

}  // namespace wan_vae_test
}  // namespace kinora::models
