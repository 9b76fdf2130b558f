#include "kinora/models/autoencoders/dc_ae.h"

#include <ATen/core/grad_mode.h>

#include "tests/error_of.h"
#include "tests/models/autoencoders/clip_autoencoder_fixture.h"

namespace kinora::models {
namespace dc_ae_test {

/// Of dc_ae.safetensors.
DcAeConfig sana() {
  DcAeConfig config;
  config.latent_channels = 4;
  config.attention_head_dim = 8;
  config.encoder = {{.width = 4, .depth = 1},
                    {.width = 8, .depth = 1, .attends = true, .scales = {5}},
                    {.width = 16, .depth = 1, .attends = true, .scales = {3, 5}}};
  config.decoder = {{.width = 8, .depth = 2},
                    {.width = 8, .depth = 1, .attends = true, .scales = {5, 3}},
                    {.width = 16, .depth = 1, .attends = true, .scales = {5}}};
  config.unshuffles = false;
  config.shuffles = false;
  config.scaling_factor = 0.5;
  return config;
}

/// Of dc_ae_shuffled.safetensors.
DcAeConfig shuffled() {
  DcAeConfig config;
  config.latent_channels = 3;
  config.attention_head_dim = 4;
  config.encoder = {{.width = 4, .depth = 0},
                    {.width = 8, .depth = 1},
                    {.width = 8, .depth = 1, .attends = true},
                    {.width = 16, .depth = 1, .attends = true}};
  config.decoder = config.encoder;
  config.decoder[1].depth = 2;
  config.decoder[1].norm = DcNorm::kBatch;
  config.decoder[1].activation = DcActivation::kRelu;
  config.decoder[2].norm = DcNorm::kBatch;
  config.encoder_out_shortcut = false;
  config.decoder_in_shortcut = false;
  return config;
}

/// Statistics as the fixture has them.
void set_statistics(DcAe& model) {
  for (const auto& [path, buffer] : model.named_buffers()) {
    *buffer = path.ends_with("running_var") ? formula_values(path, buffer->sizes()) / 4.0 + 1.0
                                            : formula_weight(path, buffer->sizes());
  }
}

TEST(DcAeTest, EqualsDiffusersForwardAndBackward) {
  const Fixture fixture("dc_ae.safetensors");
  DcAe model(sana());
  expect_case(fixture, "encode", model, {2, 3, 8, 12});
  expect_case(fixture, "decode", model, {2, 4, 2, 3});
  EXPECT_FALSE(model.encode(formula_values("x", {1, 3, 8, 8})).std.defined());
}

TEST(DcAeTest, EqualsDiffusersWithBatchNormsAndPixelShuffle) {
  const Fixture fixture("dc_ae_shuffled.safetensors");
  DcAe model(shuffled());
  set_statistics(model);
  expect_case(fixture, "encode", model, {2, 3, 16, 24});
  expect_case(fixture, "decode", model, {2, 3, 2, 3});
}

TEST(DcAeTest, PiecesAreTheWhole) {
  DcAe plain(sana());
  expect_same_in_all_pieces(plain, [&](const at::Tensor& z) { return plain.decode(z); },
                            {2, 4, 5, 3});
  expect_same_in_all_pieces(plain, [&](const at::Tensor& x) { return plain.encode(x).mean; },
                            {1, 3, 20, 8});
  DcAe other(shuffled());
  set_statistics(other);
  expect_same_in_all_pieces(other, [&](const at::Tensor& z) { return other.decode(z); },
                            {1, 3, 5, 2});
  expect_same_in_all_pieces(other, [&](const at::Tensor& x) { return other.encode(x).mean; },
                            {2, 3, 40, 16});
}

TEST(DcAeTest, TheBudgetHolds) {
  for (const DcAeConfig& config : {sana(), shuffled()}) {
    for (const bool with_gradients : {false, true}) {
      DcAe model(config);
      set_formula_weights(model);
      const at::AutoGradMode mode(with_gradients);
      const at::Tensor latents = formula_values("z", {2, config.latent_channels, 24, 12})
                                     .set_requires_grad(with_gradients);
      const auto peak = [&] { return decoding_peak(model, latents); };
      const int64_t unlimited = peak();
      for (const int64_t percent : {90, 70, 50}) {
        const int64_t budget = unlimited * percent / 100;
        model.set_memory_budget(budget);
        EXPECT_LE(peak(), budget) << percent << " %, gradients: " << with_gradients;
      }
    }
  }
}

TEST(DcAeTest, LatentsAreScaled) {
  DcAeConfig config = sana();
  DcAe scaled(config);
  config.scaling_factor = 1.0;
  DcAe raw(config);
  set_formula_weights(scaled);
  set_formula_weights(raw);
  const at::NoGradGuard no_grad;
  const at::Tensor pixels = formula_values("x", {1, 3, 8, 12});
  const at::Tensor latents = scaled.encode(pixels).mean;
  EXPECT_LT(relative_error(latents * 2.0, raw.encode(pixels).mean), 1e-6);
  EXPECT_LT(relative_error(scaled.decode(latents), raw.decode(latents * 2.0)), 1e-6);
}

TEST(DcAeTest, Bfloat16IsNear) {
  DcAe model(shuffled());
  set_statistics(model);
  const at::NoGradGuard no_grad;
  const at::Tensor pixels = formula_values("x", {1, 3, 16, 24});
  set_formula_weights(model);
  const at::Tensor latents = model.encode(pixels).mean;
  const at::Tensor decoded = model.decode(latents);
  set_formula_weights(model, at::kBFloat16);
  EXPECT_EQ(model.decode(latents).scalar_type(), at::kFloat);
  EXPECT_LT(relative_error(model.encode(pixels).mean, latents), 0.05);
  EXPECT_LT(relative_error(model.decode(latents), decoded), 0.05);
}

TEST(DcAeTest, WhatDoesNotFitIsNamed) {
  DcAe model(shuffled());
  set_formula_weights(model);
  const auto shape_error = [&](const std::vector<int64_t>& shape) {
    return error_of(ErrorKind::kShape, [&] { (void)model.encode(formula_values("x", shape)); });
  };
  EXPECT_NE(shape_error({1, 3, 16, 12}).find("multiples of 8, got [1, 3, 16, 12]"),
            std::string::npos);
  EXPECT_NE(shape_error({1, 4, 16, 16}).find("[B, 3, (T,) H, W]"), std::string::npos);
  EXPECT_NE(error_of(ErrorKind::kShape,
                     [&] {
                       (void)model.decode(formula_values("z", {1, 4, 2, 2}));
                     })
                .find("latents must have shape [B, 3"),
            std::string::npos);
  const auto config_error = [](const std::function<void(DcAeConfig&)>& change) {
    DcAeConfig config = sana();
    change(config);
    return error_of(ErrorKind::kConfig, [&] { const DcAe odd(config); });
  };
  const auto expect = [&](const std::function<void(DcAeConfig&)>& change, const char* words) {
    const std::string error = config_error(change);
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  expect([](DcAeConfig& c) { c.attention_head_dim = 3; }, "heads of 3 channels must divide 8");
  expect([](DcAeConfig& c) { c.encoder[1].scales = {4}; }, "must be odd, got 4");
  expect([](DcAeConfig& c) { c.decoder.pop_back(); }, "as many stages, got 3 and 2");
  expect([](DcAeConfig& c) { c.decoder[1].depth = 0; }, "decoder's stage 1 of 3");
  expect([](DcAeConfig& c) { c.latent_channels = 5; }, "between 16 and 5 channels");
  expect([](DcAeConfig& c) { c.encoder[1].width = 24; }, "between 16 and 24 channels");
}

}  // namespace dc_ae_test
}  // namespace kinora::models
