// Autoencoders whose rows are divided among ranks, each of which has fewer in memory: the numbers
// of one rank.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/models/autoencoders/autoencoder_tiny.h"
#include "kinora/models/autoencoders/autoencoder_vq.h"
#include "kinora/models/autoencoders/cogvideox_vae.h"
#include "kinora/models/autoencoders/dc_ae.h"
#include "kinora/models/autoencoders/hunyuan_vae.h"
#include "kinora/models/autoencoders/ltx_vae.h"
#include "kinora/models/autoencoders/opensora_causal_vae.h"
#include "kinora/models/autoencoders/opensora_vae.h"
#include "kinora/models/autoencoders/video_dc_ae.h"
#include "kinora/models/autoencoders/wan_vae.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/models/autoencoders/autoencoder_fixture.h"
#include "tests/models/formula_values.h"
#include "tests/models/transformers/fixture.h"

namespace kinora::parallel {
namespace autoencoders_test {

using models::Autoencoder;

struct Case {
  const char* name;
  std::function<std::unique_ptr<Autoencoder>()> make;
  std::vector<int64_t>
      latents;  ///< rows of which neither 2 nor 4 divide, but where layers see many
  std::vector<int64_t> pixels;
};

std::unique_ptr<Autoencoder> image_kl() {
  return std::make_unique<models::AutoencoderKl>(
      models::AutoencoderKlConfig{.block_out_channels = {8, 16, 24},
                                  .layers_per_block = 1,
                                  .latent_channels = 3,
                                  .norm_num_groups = 4,
                                  .scale = {0.5},
                                  .shift = {0.25}});
}

std::unique_ptr<Autoencoder> image_tiny() {
  models::AutoencoderTinyConfig config{.channels = 12,
                                       .latent_channels = 3,
                                       .num_encoder_blocks = {1, 2, 1},
                                       .num_decoder_blocks = {2, 1, 1}};
  config.pools = true;
  return std::make_unique<models::AutoencoderTiny>(config);
}

std::unique_ptr<Autoencoder> image_vq() {
  return std::make_unique<models::AutoencoderVq>(
      models::AutoencoderVqConfig{.halves = {.block_out_channels = {8, 16, 24},
                                             .layers_per_block = 1,
                                             .latent_channels = 4,
                                             .norm_num_groups = 4,
                                             .encoder_attention = {false, false, true},
                                             .decoder_attention = {false, false, true}},
                                  .num_vq_embeddings = 40,
                                  .vq_embed_dim = 3});
}

std::unique_ptr<Autoencoder> image_dc() {
  models::DcAeConfig config;
  config.latent_channels = 4;
  config.attention_head_dim = 8;
  config.encoder = {{.width = 4, .depth = 1},
                    {.width = 8, .depth = 1, .attends = true, .scales = {5}},
                    {.width = 16, .depth = 1, .attends = true, .scales = {3}}};
  config.decoder = {{.width = 8, .depth = 2},
                    {.width = 8, .depth = 1, .attends = true, .scales = {5}},
                    {.width = 16, .depth = 1, .attends = true, .scales = {3}}};
  return std::make_unique<models::DcAe>(config);
}

std::unique_ptr<Autoencoder> hunyuan() {
  return std::make_unique<models::HunyuanVae>(
      models::HunyuanVaeConfig{.latent_channels = 2,
                               .block_out_channels = {8, 8, 16, 16},
                               .layers_per_block = 1,
                               .norm_num_groups = 4,
                               .scaling_factor = 0.5});
}

std::unique_ptr<Autoencoder> open_sora() {
  models::OpenSoraVaeConfig config;
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
  return std::make_unique<models::OpenSoraVae>(config);
}

std::unique_ptr<Autoencoder> open_sora_causal() {
  return std::make_unique<models::OpenSoraCausalVae>(
      models::OpenSoraCausalVaeConfig{.latent_channels = 2,
                                      .channels = 4,
                                      .channel_multipliers = {1, 2, 2},
                                      .num_res_blocks = 1,
                                      .temporal_downsample = {false, true},
                                      .num_groups = 2,
                                      .micro_frame_size = 5,
                                      .shift = {-0.5, 0.25},
                                      .scale = {2.0, 4.0}});
}

std::unique_ptr<Autoencoder> video_dc() {
  return std::make_unique<models::VideoDcAe>(
      models::VideoDcAeConfig{.latent_channels = 4,
                              .widths = {4, 8, 8},
                              .encoder_depths = {1, 1, 1},
                              .decoder_depths = {1, 1, 1},
                              .first_attention_stage = 1,
                              .attention_dim = 4,
                              .temporal = {false, true, false}});
}

std::unique_ptr<Autoencoder> wan() {
  return std::make_unique<models::WanVae>(models::WanVaeConfig{.base_dim = 4,
                                                               .z_dim = 2,
                                                               .num_res_blocks = 1,
                                                               .latents_mean = {0.5, -0.25},
                                                               .latents_std = {2.0, 0.5}});
}

std::unique_ptr<Autoencoder> cogvideox() {
  return std::make_unique<models::CogVideoXVae>(
      models::CogVideoXVaeConfig{.latent_channels = 2,
                                 .block_out_channels = {8, 8, 16, 16},
                                 .layers_per_block = 1,
                                 .norm_num_groups = 4,
                                 .scaling_factor = 0.5});
}

std::unique_ptr<Autoencoder> ltx() {
  auto model = std::make_unique<models::LtxVae>(
      models::LtxVaeConfig{.latent_channels = 4,
                           .block_out_channels = {4, 8, 8},
                           .decoder_block_out_channels = {8, 16},
                           .layers_per_block = {1, 1, 1, 1},
                           .decoder_layers_per_block = {1, 1, 1},
                           .spatio_temporal_scaling = {true, true, false},
                           .decoder_spatio_temporal_scaling = {true, true},
                           .decoder_inject_noise = {true, true, false},
                           .upsample_residual = {true, true},
                           .upsample_factor = {2, 2},
                           .timestep_conditioning = true,
                           .patch_size = 2});
  model->set_decode_noise({.level = 0.05, .mixed = 0.1});
  return model;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"kl", image_kl, {2, 3, 7, 3}, {1, 3, 28, 8}},
      {"vq", image_vq, {2, 3, 7, 3}, {1, 3, 28, 8}},
      {"tiny", image_tiny, {2, 3, 9, 3}, {1, 3, 36, 8}},
      {"dc", image_dc, {1, 4, 9, 4}, {1, 3, 36, 16}},
      {"hunyuan", hunyuan, {1, 2, 3, 5, 2}, {1, 3, 5, 40, 16}},
      {"open_sora", open_sora, {1, 2, 5, 9, 2}, {1, 3, 8, 18, 4}},
      {"open_sora_causal", open_sora_causal, {1, 2, 3, 6, 2}, {1, 3, 5, 24, 8}},
      {"video_dc", video_dc, {1, 4, 2, 9, 3}, {1, 3, 4, 36, 8}},
      {"wan", wan, {1, 2, 3, 5, 2}, {1, 3, 9, 40, 16}},
      {"cogvideox", cogvideox, {1, 2, 5, 5, 2}, {1, 3, 9, 40, 16}},
      {"ltx", ltx, {1, 4, 3, 5, 2}, {1, 3, 5, 40, 16}},
  };
  return all;
}

/// "" where nothing is.
std::string refusal_of(const std::function<void()>& run) {
  try {
    run();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// The least budget of `model` within which planning admits what `run` does.
void set_least_budget(Autoencoder& model, const std::function<void()>& run) {
  int64_t bytes = 1;
  for (std::string error = "."; !error.empty();) {
    model.set_memory_budget(bytes);
    error = refusal_of(run);
    const std::string hint = "must be ";
    bytes = error.empty() ? bytes : std::stoll(error.substr(error.find(hint) + hint.size()));
  }
}

/// Exchanges since the last call, which ranks that each compute the whole do not make.
int64_t exchanges(const comm::Group& ranks) {
  const int64_t calls = ranks.traffic(comm::Operation::kExchange).calls;
  ranks.reset_traffic();
  return calls;
}

class AutoencodersTest : public testing::TestWithParam<size_t> {};

TEST_P(AutoencodersTest, RowsOnRanksGiveTheNumbersOfOne) {
  for (const int64_t ranks : {2, 4}) {
    comm::run_on_ranks(ranks, [](const comm::Group& world) {
      const at::NoGradGuard no_grad;
      const Case& one = cases()[GetParam()];
      const std::unique_ptr<Autoencoder> model = one.make();
      models::set_formula_weights(*model, at::kFloat);
      const at::Tensor latents = models::formula_values("latents", one.latents);
      const at::Tensor pixels = models::formula_values("pixels", one.pixels);
      const at::Tensor want_pixels = model->decode(latents);
      const models::LatentMoments want = model->encode(pixels);
      // All at once, and in bands of a row or so.
      for (const int64_t budget : {0, 1}) {
        SCOPED_TRACE(std::string(one.name) + (budget > 0 ? ", in bands" : ""));
        model->use_ranks(world);
        const auto set_budget = [&](const std::function<void()>& run) {
          model->set_memory_budget(0);
          if (budget > 0) {
            set_least_budget(*model, run);
          }
        };
        set_budget([&] { (void)model->decode(latents); });
        (void)exchanges(world);
        EXPECT_LT(models::relative_error(model->decode(latents), want_pixels), 1e-5);
        EXPECT_GT(exchanges(world), 0) << "decoding";
        set_budget([&] { (void)model->encode(pixels); });
        (void)exchanges(world);
        const models::LatentMoments got = model->encode(pixels);
        EXPECT_GT(exchanges(world), 0) << "encoding";
        EXPECT_LT(models::relative_error(got.mean, want.mean), 1e-5);
        EXPECT_EQ(got.std.defined(), want.std.defined());
        if (want.std.defined()) {
          EXPECT_LT(models::relative_error(got.std, want.std), 1e-5);
        }
      }
    });
  }
}

using Outcome = std::map<std::string, at::Tensor>;

/// In fp64, but for the parameters' gradients, which are sums in fp32. Where a gradient is nothing
/// but roundings, as that of a bias before a norm, it is measured by the largest of all.
void expect_same_gradients(const Outcome& got, const Outcome& want) {
  double largest = 0.0;
  for (const auto& [key, value] : want) {
    largest = key == "output" ? largest : std::max(largest, value.abs().max().item<double>());
  }
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [key, value] : want) {
    const bool is_parameter = key != "output" && key != "input";
    const double scale = std::max(value.abs().max().item<double>(), 1e-3 * largest);
    EXPECT_LT((got.at(key) - value).abs().max().item<double>(),
              (is_parameter ? 5e-6 : 1e-11) * scale)
        << key;
  }
}

TEST_P(AutoencodersTest, GradientsOnRanksAreThoseOfOne) {
  for (const int64_t ranks : {2, 4}) {
    comm::run_on_ranks(ranks, [](const comm::Group& world) {
      const Case& one = cases()[GetParam()];
      const std::unique_ptr<Autoencoder> model = one.make();
      const auto encode = [&](const at::Tensor& pixels) {
        const models::LatentMoments made = model->encode(pixels);
        return made.std.defined() ? at::cat({made.mean, made.std}, 1) : made.mean;
      };
      const auto decode = [&](const at::Tensor& latents) { return model->decode(latents); };
      struct Way {
        const char* name;
        models::TensorFunction run;
        std::vector<int64_t> shape;
      };
      for (const Way& way :
           {Way{"encode", encode, one.pixels}, Way{"decode", decode, one.latents}}) {
        const auto outcome = [&] { return models::outcome(*model, way.name, way.shape, way.run); };
        const auto input = [&] {
          return models::formula_values("x", way.shape).to(at::kDouble).set_requires_grad(true);
        };
        model->use_ranks({});
        model->set_memory_budget(0);
        const Outcome want = outcome();
        model->use_ranks(world);
        for (const bool recomputes : {false, true}) {
          SCOPED_TRACE(std::string(way.name) + (recomputes ? ", in bands and again" : ""));
          if (recomputes) {
            set_least_budget(*model, [&] { (void)way.run(input()); });
          }
          (void)exchanges(world);
          const Outcome got = outcome();
          // As many in backward, which goes back to where rows came from.
          const int64_t both = exchanges(world);
          (void)way.run(input());
          EXPECT_EQ(both, 2 * exchanges(world));
          model->average_gradients();
          expect_same_gradients(got, want);
        }
      }
    });
  }
}

// Of both halves one behind the other, by a picture that wants no gradient, in two passes.
TEST_P(AutoencodersTest, WeightsLearnFromSeveralPassesOnRanks) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const Case& one = cases()[GetParam()];
    const std::unique_ptr<Autoencoder> model = one.make();
    const auto gradients = [&](const comm::Group& ranks) {
      model->use_ranks(ranks);
      models::set_formula_weights(*model, at::kDouble);
      for (const char* name : {"first", "second"}) {
        const at::Tensor pixels = models::formula_values(name, one.pixels).to(at::kDouble);
        const at::Tensor again = model->decode(model->encode(pixels).mean);
        torch::autograd::backward({(again - pixels).square().sum()}, {});
        model->average_gradients();
      }
      Outcome all;
      for (const auto& [path, parameter] : model->named_parameters()) {
        all.emplace(path, parameter->grad);
      }
      return all;
    };
    const Outcome want = gradients({});
    expect_same_gradients(gradients(world), want);
  });
}

INSTANTIATE_TEST_SUITE_P(All, AutoencodersTest, testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) { return std::string(cases()[info.param].name); });

TEST(AutoencodersOnRanksTest, WhatDoesNotFitIsNamed) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    const std::unique_ptr<Autoencoder> model = image_kl();
    models::set_formula_weights(*model, at::kFloat);
    model->use_ranks(world);
    const auto message = [&](int64_t rows) {
      return error_of(ErrorKind::kConfig, [&] {
        (void)model->decode(models::formula_values("latents", {1, 3, rows, 3}));
      });
    };
    EXPECT_THAT(message(3), testing::HasSubstr("4 ranks cannot divide 3 rows of latents"));
  });
}

}  // namespace autoencoders_test
}  // namespace kinora::parallel
