#include "kinora/models/autoencoders/autoencoder_kl.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/error_of.h"
#include "tests/models/autoencoders/autoencoder_fixture.h"

namespace kinora::models {
namespace autoencoder_kl_test {

AutoencoderKlConfig small_config() {
  return {.block_out_channels = {8, 16, 24},
          .layers_per_block = 1,
          .latent_channels = 3,
          .norm_num_groups = 4,
          .scale = {0.5},
          .shift = {0.25}};
}

/// Mean and log variance before scaling, as diffusers returns them.
at::Tensor raw_moments(AutoencoderKl& model, const at::Tensor& pixels) {
  const LatentMoments moments = model.encode(pixels);
  const double scale = model.space().scale[0];
  return at::cat({moments.mean / scale + model.space().shift[0], (moments.std / scale).log() * 2.0},
                 1);
}

TEST(AutoencoderKlTest, EqualsDiffusersForwardAndBackward) {
  const Fixture fixture("kl_vae.safetensors");
  AutoencoderKl model(small_config());
  expect_as_fixture(fixture, model, "encode", {2, 3, 16, 12},
                    [&](const at::Tensor& x) { return raw_moments(model, x); });
  expect_as_fixture(fixture, model, "decode", {2, 3, 4, 3}, [&](const at::Tensor& z) {
    return model.decode(to_model_space(model.space(), z));
  });
}

TEST(AutoencoderKlTest, BudgetsChangeMemoryOnly) {
  AutoencoderKl model(small_config());
  const auto encode = [&](const at::Tensor& x) { return raw_moments(model, x); };
  const auto decode = [&](const at::Tensor& z) { return model.decode(z); };
  const auto encoded = outcome(model, "encode", {2, 3, 48, 20}, encode);
  const auto decoded = outcome(model, "decode", {2, 3, 12, 5}, decode);
  for (const int64_t budget : {3'000'000, 1'000'000}) {
    model.set_memory_budget(budget);
    expect_same_outcome(outcome(model, "encode", {2, 3, 48, 20}, encode), encoded, 2e-6);
    expect_same_outcome(outcome(model, "decode", {2, 3, 12, 5}, decode), decoded, 2e-6);
  }
  model.set_memory_budget(1000);
  const std::string message = error_of(ErrorKind::kConfig, [&] {
    return outcome(model, "decode", {2, 3, 12, 5}, decode);
  });
  EXPECT_NE(message.find("got 1000"), std::string::npos) << message;
}

// Without gradients norms write into what they read.
TEST(AutoencoderKlTest, OverwrittenActivationsChangeNothing) {
  AutoencoderKl model({.block_out_channels = {32, 64}, .layers_per_block = 1});
  set_formula_weights(model);
  const at::Tensor latents = at::randn({2, 4, 6, 5});
  const at::Tensor before = latents.clone();
  const at::Tensor expected = model.decode(latents).detach();
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::allclose(model.decode(latents), expected, 1e-5, 1e-5));
  EXPECT_TRUE(latents.equal(before));
}

// Without gradients only the outer rows of bands are computed from copies.
TEST(AutoencoderKlTest, BandsWithoutGradientsAreTheWhole) {
  const at::NoGradGuard no_grad;
  AutoencoderKl model(
      {.block_out_channels = {32, 64}, .layers_per_block = 1, .mid_block_add_attention = false});
  set_formula_weights(model);
  const at::Tensor latents = at::randn({1, 4, 16, 5});
  const at::Tensor pixels = at::randn({1, 3, 32, 10});
  const at::Tensor decoded = model.decode(latents);
  const at::Tensor encoded = model.encode(pixels).mean;
  std::set<std::pair<int64_t, bool>> cuts;  // bands of the largest level, and whether on the host
  for (int64_t budget = 170'000; budget >= 100'000; budget -= 5'000) {
    const auto plan =
        nn::plan_bands(model.decoder.stages({.rows = 16, .row_bytes = 20}, 16), {budget}, false);
    if (!cuts.emplace(plan.stages.back().bands, plan.on_host).second) {
      continue;
    }
    model.set_memory_budget(budget);
    EXPECT_TRUE(at::allclose(model.decode(latents), decoded, 1e-5, 1e-5)) << budget;
    EXPECT_TRUE(at::allclose(model.encode(pixels).mean, encoded, 1e-5, 1e-5)) << budget;
  }
  EXPECT_THAT(
      cuts,
      testing::IsSupersetOf(
          {std::pair<int64_t, bool>(1, false), {2, false}, {3, false}, {16, false}, {8, true}}));
}

// Of Stable Diffusion's decoder at 1024 px only the levels that are large are cut.
TEST(AutoencoderKlTest, LevelsAreCutByTheirSize) {
  const AutoencoderKl model({});
  constexpr int64_t kLatents = 128;
  const auto stages = model.decoder.stages({.rows = kLatents, .row_bytes = kLatents * 2}, kLatents);
  const nn::BandPlan plan = nn::plan_bands(stages, {870'000'000}, /*with_gradients=*/false);
  ASSERT_EQ(plan.stages.size(), 4U);
  EXPECT_EQ(plan.stages[0].bands, 1);
  EXPECT_EQ(plan.stages[1].bands, 1);
  EXPECT_GT(plan.stages[3].bands, 2);
  EXPECT_FALSE(plan.on_host);
}

TEST(AutoencoderKlTest, ClipsAreTakenFrameByFrame) {
  AutoencoderKl model(small_config());
  set_formula_weights(model);
  const at::NoGradGuard no_grad;
  const at::Tensor clip = formula_values("clip", {2, 3, 2, 8, 12});
  const LatentMoments moments = model.encode(clip);
  const at::Tensor decoded = model.decode(moments.mean);
  EXPECT_EQ(moments.std.sizes(), (std::vector<int64_t>{2, 3, 2, 2, 3}));
  EXPECT_EQ(decoded.sizes(), clip.sizes());
  for (int64_t t = 0; t < 2; ++t) {
    const at::Tensor mean = model.encode(clip.select(2, t)).mean;
    EXPECT_LT(relative_error(moments.mean.select(2, t), mean), 1e-6);
    EXPECT_LT(relative_error(decoded.select(2, t), model.decode(mean)), 1e-6);
  }
}

TEST(AutoencoderKlTest, EveryChannelHasItsScale) {
  AutoencoderKlConfig config = small_config();
  AutoencoderKl plain(config);
  config.scale = {1.0, 2.0, 4.0};
  config.shift = {0.5, -0.5, 1.0};
  AutoencoderKl scaled(config);
  set_formula_weights(plain);
  set_formula_weights(scaled);
  const at::NoGradGuard no_grad;
  const at::Tensor pixels = formula_values("pixels", {1, 3, 8, 8});
  const LatentMoments of_plain = plain.encode(pixels);
  const LatentMoments of_scaled = scaled.encode(pixels);
  for (int64_t c = 0; c < 3; ++c) {
    const auto channel = static_cast<size_t>(c);
    const at::Tensor raw = of_plain.mean.select(1, c) * 2.0 + 0.25;
    EXPECT_LT(relative_error(of_scaled.mean.select(1, c),
                             (raw - config.shift[channel]) * config.scale[channel]),
              1e-5);
    EXPECT_LT(relative_error(of_scaled.std.select(1, c),
                             of_plain.std.select(1, c) * 2.0 * config.scale[channel]),
              1e-6);
  }
  EXPECT_LT(relative_error(scaled.decode(of_scaled.mean), plain.decode(of_plain.mean)), 1e-5);
}

TEST(AutoencoderKlTest, GreyOnesEncodeTheLumaOfColours) {
  AutoencoderKlConfig config = small_config();
  AutoencoderKl coloured(config);
  config.in_channels = 1;
  AutoencoderKl grey(config);
  // Of the weights of a coloured one, whose first convolution sees the luma in each channel.
  const at::Tensor x = at::randn({2, 3, 16, 12}) * 0.3;
  const at::Tensor weights = at::tensor({299.0, 587.0, 114.0}).view({1, 3, 1, 1}) / 1000.0;
  const at::Tensor luma = (x * weights).sum(1, true);
  std::map<std::string, at::Tensor> values;
  for (const auto& [path, parameter] : coloured.named_parameters()) {
    parameter->value = at::randn(parameter->shape) * 0.2;
    values[path] = parameter->value;
  }
  for (const auto& [path, parameter] : grey.named_parameters()) {
    parameter->value = path == "encoder.conv_in.weight" ? values[path].sum(1, true)
                       : values[path].sizes() == parameter->shape
                           ? values[path]
                           : at::zeros(parameter->shape);  // of the decoder's end
  }
  const LatentMoments got = grey.encode(x);
  const LatentMoments expected = coloured.encode(luma.expand({-1, 3, -1, -1}));
  EXPECT_TRUE(at::allclose(got.mean, expected.mean, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(got.std, expected.std, 1e-4, 1e-5));
  EXPECT_EQ(grey.decode(got.mean).sizes(), at::IntArrayRef({2, 1, 16, 12}));
}

TEST(AutoencoderKlTest, WrongShapesAreNamed) {
  AutoencoderKl model(small_config());
  set_formula_weights(model);
  const auto refused = [&](std::vector<int64_t> shape) {
    return error_of(ErrorKind::kShape, [&] { return model.encode(formula_values("x", shape)); });
  };
  EXPECT_NE(refused({1, 3, 8, 10}).find("multiples of 4, got [1, 3, 8, 10]"), std::string::npos);
  EXPECT_NE(refused({1, 4, 8, 8}).find("[B, 3, (T,) H, W]"), std::string::npos);
  EXPECT_NE(refused({3, 8, 8}).find("got [3, 8, 8]"), std::string::npos);
  EXPECT_NE(error_of(ErrorKind::kShape,
                     [&] {
                       return model.decode(formula_values("z", {1, 4, 8, 8}));
                     })
                .find("latents must have shape [B, 3"),
            std::string::npos);
  AutoencoderKlConfig config = small_config();
  config.norm_num_groups = 5;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { return AutoencoderKl(config).limits().bytes; })
                .find("groups must divide the channels"),
            std::string::npos);
}

}  // namespace autoencoder_kl_test
}  // namespace kinora::models
