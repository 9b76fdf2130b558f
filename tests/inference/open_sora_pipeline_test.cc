#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/prompts.h"
#include "kinora/io/image.h"
#include "kinora/models/autoencoders/opensora_causal_vae.h"
#include "kinora/models/model.h"
#include "kinora/ops/random.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/error_of.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"

// There is no published folder here: a tiny one in their layout, with the text encoder of
// tests/inference/data/pixart_alpha.

namespace kinora::inference {
namespace open_sora_pipeline_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

const LoadOptions kOnCpu = {.device = DeviceChoice::kCpu, .says = false};

fs::path pixart() {
  return source_path("tests/inference/data/pixart_alpha");
}

class OpenSoraPipelineTest : public testing::Test {
 protected:
  OpenSoraPipelineTest() {
    fs::remove_all(path_);
    fs::create_directories(path_ / "transformer");
    fs::copy(pixart() / "text_encoder", path_ / "text_encoder", fs::copy_options::recursive);
    fs::copy(pixart() / "tokenizer", path_ / "text_encoder", fs::copy_options::recursive);
    fs::copy(pixart() / "vae", path_ / "vae", fs::copy_options::recursive);
  }
  ~OpenSoraPipelineTest() override { fs::remove_all(path_); }

  /// The transformer as the hub's folders describe theirs, with random weights.
  void make(const std::string& type, const json& changes = json::object()) {
    json config = {{"model_type", type},     {"depth", 1},
                   {"hidden_size", 48},      {"num_heads", 2},
                   {"in_channels", 4},       {"patch_size", {1, 2, 2}},
                   {"caption_channels", 16}, {"model_max_length", 40},
                   {"pred_sigma", true},     {"qk_norm", true},
                   {"input_sq_size", 512},   {"input_size", {nullptr, nullptr, nullptr}}};
    config.update(changes);
    std::ofstream(path_ / "transformer/config.json") << config;
    const fs::path weights = path_ / "transformer/model.safetensors";
    checkpoint::write_weights(weights, {});
    const auto model = models::make_model(read_recipe(path_, kOnCpu).model);
    checkpoint::LateTensors tensors;
    for (const auto& [path, parameter] : model->named_parameters()) {  // none is zero
      tensors.emplace(
          path, checkpoint::late_tensor(ops::normal(parameter->shape, std::ssize(tensors)) * 0.15));
    }
    checkpoint::write_weights(weights, tensors);
  }

  /// The autoencoder of 1.3 as the hub describes it, of chunks of 5 frames that become 3, with
  /// random weights.
  void make_causal_vae() {
    fs::remove_all(path_ / "vae");
    fs::create_directories(path_ / "vae");
    const json half = {
        {"z_channels", 16}, {"ch", 32}, {"ch_mult", {1, 1, 1}}, {"num_res_blocks", 1}};
    json encoder = {{"type", "VideoEncoder"}, {"down_sampling_layer", {1}}};
    json decoder = {{"type", "VideoDecoder"}, {"temporal_up_layers", {2}}};
    decoder["temporal_downsample"] = 2;
    encoder.update(half);
    decoder.update(half);
    const json config = {{"model_type", "OpenSoraVAE_V1_3_Pipline"},
                         {"encoder", encoder},
                         {"decoder", decoder},
                         {"micro_frame_size", 5}};
    std::ofstream(path_ / "vae/config.json") << config;
    models::OpenSoraCausalVae model({.channels = 32,
                                     .channel_multipliers = {1, 1, 1},
                                     .num_res_blocks = 1,
                                     .temporal_downsample = {false, true},
                                     .micro_frame_size = 5});
    checkpoint::LateTensors tensors;
    for (const auto& [path, parameter] : model.named_parameters()) {
      tensors.emplace(
          path, checkpoint::late_tensor(ops::normal(parameter->shape, std::ssize(tensors)) * 0.1));
    }
    checkpoint::write_weights(path_ / "vae/model.safetensors", tensors);
  }

  /// A picture of 32 x 48 pixels.
  [[nodiscard]] fs::path make_picture() const {
    io::Image image;
    io::set_size(image, 32, 48);
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      image.pixels[i] = static_cast<uint8_t>(i * 7 % 251);
    }
    io::write_png(path_ / "first.png", image);
    return path_ / "first.png";
  }

  [[nodiscard]] Prompts prompts(const CaptionOptions& options) const {
    return prompts_of_pipeline(pipelines::find_pipeline(path_).value(), {"A red circle"},
                               read_recipe(path_, kOnCpu), options);
  }
  /// The states of a whole caption, as PixArt's pipeline of the same encoder makes them.
  static std::vector<float> states(const std::string& caption) {
    const Prompts its = prompts_of_pipeline(pipelines::find_pipeline(pixart()).value(), {caption},
                                            read_recipe(pixart(), kOnCpu), {.says = false});
    const auto length = static_cast<size_t>(its.all[0].text.length * its.shape.channels);
    return {its.all[0].text.tokens.begin(),
            its.all[0].text.tokens.begin() + static_cast<std::ptrdiff_t>(length)};
  }
  static std::vector<float> states(const data::Text& text) {
    return {text.tokens.begin(),
            text.tokens.begin() + static_cast<std::ptrdiff_t>(text.length * 16)};
  }

  fs::path path_ = fs::path(testing::TempDir()) / ("open-sora-" + std::to_string(::getpid()));
};

TEST_F(OpenSoraPipelineTest, RecipesAreThoseOfItsOwnInference) {
  make("STDiT3");
  const ModelRecipe flow = read_recipe(path_, kOnCpu);
  EXPECT_EQ(flow.model.architecture, "stdit3");
  EXPECT_EQ(flow.model.height, 30);
  EXPECT_EQ(flow.model.width, 52);
  EXPECT_EQ(flow.model.text_tokens, 40);
  EXPECT_EQ(flow.sample.sampling.steps, 30);
  EXPECT_EQ(flow.sample.sampling.guidance, 7.0);
  EXPECT_TRUE(flow.objective.shift_by_size);
  EXPECT_TRUE(flow.objective.toward_data);
  EXPECT_EQ(pipelines::find_pipeline(path_)->class_name, "Open-Sora 1.2");
  make("STDiT2");
  const ModelRecipe chain = read_recipe(path_, kOnCpu);
  EXPECT_EQ(chain.model.frames, 16);
  EXPECT_EQ(chain.sample.sampling.steps, 100);
  EXPECT_EQ(chain.sample.sampling.guidance_channels, diffusion::GuidanceChannels::kFirstThree);
  EXPECT_EQ(pipelines::find_pipeline(path_)->class_name, "Open-Sora 1.1");
}

// configs/opensora/inference/16x256.py and 16x512.py of 1.0.
TEST_F(OpenSoraPipelineTest, TheFirstVersionIsKnownByTheNameOfItsFile) {
  const fs::path file = path_ / "transformer/OpenSora-v1-HQ-16x512.pth";
  std::ofstream(file) << "";
  const pipelines::Pipeline found = pipelines::find_pipeline(path_).value();
  EXPECT_EQ(found.class_name, "Open-Sora 1.0");
  EXPECT_EQ(found.text->max_tokens, 120);
  EXPECT_FALSE(found.text->scores->aesthetic.has_value());
  const json large = json::parse(pipelines::pipeline_recipe(found));
  const json& model = large["model"];
  EXPECT_EQ(model["architecture"], "stdit");
  EXPECT_EQ(model["depth"], 28);
  EXPECT_EQ(model["hidden"], 1152);
  EXPECT_EQ(model["frames"], 16);
  EXPECT_EQ(model["height"], 512 / model["compression"].get<int64_t>());
  EXPECT_EQ(model["position_scale"], 1.0);
  EXPECT_EQ(model["time_position_scale"], 1.0);
  EXPECT_EQ(large["objective"]["kind"], "iddpm");
  EXPECT_EQ(large["sample"]["steps"], 100);
  EXPECT_EQ(large["sample"]["guidance"], 7.0);
  EXPECT_EQ(large["sample"]["guidance_channels"], "first_three");
  EXPECT_EQ(large["data"]["fps"], 8.0);

  fs::rename(file, path_ / "transformer/OpenSora-v1-16x1024.pth");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return pipelines::find_pipeline(path_)->folder; }),
              AllOf(HasSubstr("OpenSora-v1-16x1024.pth"), HasSubstr("16x256")));
  std::ofstream(path_ / "transformer/OpenSora-v1-16x256.pth") << "";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return pipelines::find_pipeline(path_)->folder; }),
              HasSubstr("must hold one model"));
}

TEST_F(OpenSoraPipelineTest, TheFirstVersionDrawsAndItsFileNeedsNoConfig) {
  make("STDiT", {{"input_size", {3, 4, 6}}, {"space_scale", 0.5}, {"qk_norm", false}});
  const ModelRecipe recipe = read_recipe(path_, kOnCpu);
  EXPECT_EQ(recipe.model.architecture, "stdit");
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{4, 3, 4, 6}));
  TrainedModel trained = load_trained(path_, kOnCpu);
  Drawing drawing(trained,
                  {{.encoded = std::make_shared<Prompts>(prompts({.says = false})), .seed = 8}},
                  {.steps = 3});
  const at::Tensor drawn = drawing.draw();
  EXPECT_EQ(drawn.sizes(), (at::IntArrayRef{1, 4, 3, 4, 6}));
  EXPECT_TRUE(std::isfinite(drawn.abs().max().item<double>()));

  fs::rename(path_ / "transformer/model.safetensors",
             path_ / "transformer/OpenSora-v1-16x256.safetensors");
  fs::remove(path_ / "transformer/config.json");
  EXPECT_THAT(pipelines::open_weights(path_, false).names(),
              testing::Contains("blocks.0.attn_temp.qkv.weight"));
  EXPECT_EQ(read_recipe(path_, kOnCpu).model.transformer.hidden, 1152);
}

// configs/opensora-v1-3/inference/t2v.py.
TEST_F(OpenSoraPipelineTest, WindowsMakeItVersionThree) {
  fs::remove_all(path_ / "vae");
  make("STDiT3", {{"kernel_size", {8, 8, -1}}, {"use_spatial_rope", true}, {"in_channels", 16}});
  const ModelRecipe recipe = read_recipe(path_, kOnCpu);
  EXPECT_EQ(pipelines::find_pipeline(path_)->class_name, "Open-Sora 1.3");
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{16, 35, 90, 160}));
  EXPECT_EQ(recipe.model.transformer.window, (std::vector<int64_t>{65536, 8, 8}));
  EXPECT_TRUE(recipe.model.transformer.rotary_3d);
  EXPECT_TRUE(recipe.model.transformer.given_embedders);
  EXPECT_EQ(recipe.sample.sampling.guidance, 7.5);
  EXPECT_EQ(recipe.sample.sampling.guidance_alternates_after, 10);
  EXPECT_EQ(recipe.sample.sampling.guidance_rescale, 0.7);
  EXPECT_EQ(recipe.sample.sampling.given_guidance, 5.0);
  EXPECT_EQ(recipe.objective.shift_chunk, 5);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return decoder_path(recipe, {}); }),
              HasSubstr((path_ / "vae").string()));
  std::ofstream(path_ / "transformer/config.json")
      << R"({"model_type": "STDiT3", "kernel_size": [8, 8, -1]})";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path_, kOnCpu); }),
              HasSubstr("use_spatial_rope must be true, got false"));
  std::ofstream(path_ / "transformer/config.json")
      << R"({"model_type": "STDiT3", "kernel_size": [8, 8], "use_spatial_rope": true})";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path_, kOnCpu); }),
              HasSubstr("kernel_size must be rows, columns and frames, got [8,8]"));
}

TEST_F(OpenSoraPipelineTest, APictureIsGivenThroughTheAutoencoder) {
  make("STDiT3");
  const fs::path picture = make_picture();
  TrainedModel trained = load_trained(path_, kOnCpu);
  const auto encoder = open_decoder(trained.recipe, {}, at::kCPU);
  const Request request{.encoded = std::make_shared<Prompts>(prompts({.says = false})), .seed = 8};
  DrawOptions options{.steps = 2,
                      .size = {.frames = 3, .height = 32, .width = 48},
                      .given = {picture.string()},
                      .encoder = encoder.get()};
  const at::Tensor clip = Drawing(trained, {request}, options).draw();
  const at::Tensor expected =
      encoder->encode(read_pixels(picture, {.height = 32, .width = 48}).unsqueeze(0)).mean;
  EXPECT_LT((clip.select(2, 0) - expected.select(2, 0)).abs().max().item<double>(), 1e-5);
  options.encoder = nullptr;
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return Drawing(trained, {request}, options).asked().size(); }),
              HasSubstr("--autoencoder PATH"));
}

TEST_F(OpenSoraPipelineTest, ScoresStandBehindThePromptAndTheNullTextIsTheModels) {
  make("STDiT3");
  const Prompts usual = prompts({.says = false});
  EXPECT_THAT(states(usual.all[0].text),
              Pointwise(FloatNear(1e-5F), states("a red circle aesthetic score: 6.5.")));
  EXPECT_FALSE(usual.negative.has_value());
  const Prompts told =
      prompts({.negative = "blurry", .scores = {.aesthetic = 4.0, .motion = 2.0}, .says = false});
  EXPECT_THAT(
      states(told.all[0].text),
      Pointwise(FloatNear(1e-5F), states("a red circle aesthetic score: 4.0. motion score: 2.0.")));
  EXPECT_THAT(states(told.negative.value()), Pointwise(FloatNear(1e-5F), states("blurry")));
  make("STDiT2");
  EXPECT_THAT(states(prompts({.says = false}).all[0].text),
              Pointwise(FloatNear(1e-5F), states("a red circle")));
}

TEST_F(OpenSoraPipelineTest, ScoresOfVersionThreeAreWords) {
  fs::remove_all(path_ / "vae");
  make("STDiT3", {{"kernel_size", {8, 8, -1}}, {"use_spatial_rope", true}});
  EXPECT_THAT(states(prompts({.says = false}).all[0].text),
              Pointwise(FloatNear(1e-5F), states("a red circle")));
  EXPECT_THAT(
      states(prompts({.scores = {.aesthetic = 7.0}, .says = false}).all[0].text),
      Pointwise(FloatNear(1e-5F), states("a red circle the aesthetic score is excellent.")));
}

// Open-Sora 1.2, schedulers/rf: t = 1000 (1 - i / N), moved by timestep_transform; z += v dt. What
// the model is told is Kinora's own (conditions_of_prompts).
TEST_F(OpenSoraPipelineTest, ClipsAreThoseOfItsRectifiedFlow) {
  make("STDiT3");
  constexpr int64_t kSteps = 5;
  constexpr double kGuidance = 7.0;
  TrainedModel trained = load_trained(path_, kOnCpu);
  const Prompts encoded = prompts({.says = false});
  const SampleSize size{.frames = 3, .height = 32, .width = 48};
  Drawing drawing(trained, {{.encoded = std::make_shared<Prompts>(encoded), .seed = 8}},
                  {.steps = kSteps, .size = size});
  const at::Tensor ours = drawing.draw();

  models::ModelConfig model = trained.recipe.model;
  model.frames = size.frames;
  model.height = 4;
  model.width = 6;
  const pipelines::DrawConditions given =
      conditions_of_prompts(encoded, model, 24.0, at::kCPU)(0, 1);
  at::Tensor z = ops::random_normal({1, 4, 3, 4, 6}, at::zeros_like(given.conditions.text_lengths),
                                    8, 0, RandomPurpose::kInitialNoise, at::kCPU);
  const double ratio = std::sqrt(32.0 * 48.0 / (512.0 * 512.0)) * std::sqrt(3.0);
  const auto time = [&](int64_t i) {
    const double t = 1.0 - static_cast<double>(i) / kSteps;
    return ratio * t / (1.0 + (ratio - 1.0) * t);
  };
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto velocity = [&](const diffusion::Conditions& conditions) {
      return trained.model->forward(z, at::full({1}, time(i), at::kFloat), conditions)
          .narrow(1, 0, 4);
    };
    diffusion::Conditions without = given.conditions;
    without.null_text = given.null.null_text;
    const at::Tensor null = velocity(without);
    const at::Tensor v = null + kGuidance * (velocity(given.conditions) - null);
    z = z + v * (time(i) - time(i + 1));
  }
  EXPECT_LT(((ours - z).norm() / z.norm()).item<double>(), 1e-5);
}

// Open-Sora 1.3, schedulers/rf: sample() with use_oscillation_guidance and use_flaw_fix
// (configs/opensora-v1-3/inference/t2v.py), and with mask_index, use_sdedit and scale_image_weight
// (v2v.py).
class OpenSora13Test : public OpenSoraPipelineTest {
 protected:
  static constexpr int64_t kSteps = 13;
  static constexpr double kGuidance = 7.5;
  static constexpr uint64_t kSeed = 8;

  OpenSora13Test() {
    make_causal_vae();
    make("STDiT3", {{"kernel_size", {8, 8, -1}}, {"use_spatial_rope", true}, {"in_channels", 16}});
    trained_.emplace(load_trained(path_, kOnCpu));
    encoded_ = prompts({.says = false});
  }

  at::Tensor draw(DrawOptions options) {
    options.steps = kSteps;
    options.size = size_;
    return Drawing(*trained_, {{.encoded = std::make_shared<Prompts>(encoded_), .seed = kSeed}},
                   options)
        .draw();
  }

  [[nodiscard]] pipelines::DrawConditions conditions() const {
    models::ModelConfig model = trained_->recipe.model;
    model.frames = size_.frames;
    model.height = size_.height / 4;
    model.width = size_.width / 4;
    return conditions_of_prompts(encoded_, model, 24.0, at::kCPU)(0, 1);
  }

  [[nodiscard]] static at::Tensor noise(uint32_t step, RandomPurpose purpose) {
    return ops::random_normal({1, 16, 6, 4, 6}, at::zeros({1}, at::kLong), kSeed, step, purpose,
                              at::kCPU);
  }

  at::Tensor velocity(const at::Tensor& z, double t, const diffusion::Conditions& conditions) {
    return trained_->model->forward(z, at::full({1}, t, at::kFloat), conditions).narrow(1, 0, 16);
  }

  /// 9 frames in two chunks: 4 latent frames are counted.
  static double time(int64_t i) {
    const double ratio = std::sqrt(16.0 * 24.0 / (512.0 * 512.0)) * std::sqrt(4.0);
    const double t = 1.0 - static_cast<double>(i) / kSteps;
    return ratio * t / (1.0 + (ratio - 1.0) * t);
  }

  static bool is_guided(int64_t i) { return i < 10 || i % 2 == 0; }

  const SampleSize size_ = {.frames = 6, .height = 16, .width = 24};
  const at::NoGradGuard no_grad_;
  std::optional<TrainedModel> trained_;
  Prompts encoded_;
};

TEST_F(OpenSora13Test, ClipsAreThoseOfItsSampler) {
  EXPECT_EQ(trained_->recipe.model.frames, 28 * 3) << "113 frames";
  EXPECT_EQ(trained_->recipe.model.compression, 4);
  EXPECT_EQ(trained_->recipe.objective.shift_chunk, 3);
  const at::Tensor ours = draw({});
  const pipelines::DrawConditions given = conditions();
  diffusion::Conditions without = given.conditions;
  without.null_text = given.null.null_text;
  at::Tensor z = noise(0, RandomPurpose::kInitialNoise);
  for (int64_t i = 0; i < kSteps; ++i) {
    const at::Tensor cond = velocity(z, time(i), given.conditions);
    at::Tensor v = cond;
    if (is_guided(i)) {
      const at::Tensor null = velocity(z, time(i), without);
      v = null + kGuidance * (cond - null);
      v = v * (0.7 * cond.std() / v.std() + 0.3);
    }
    z = z + v * (time(i) - time(i + 1));
  }
  EXPECT_LT(((ours - z).norm() / z.norm()).item<double>(), 1e-5);

  const auto decoder = open_decoder(trained_->recipe, {}, at::kCPU);
  EXPECT_EQ(decoder->decode(ours).sizes(), (at::IntArrayRef{1, 3, 9, 16, 24}));
}

TEST_F(OpenSora13Test, ClipsOfAPictureAreThoseOfItsSampler) {
  const auto encoder = open_decoder(trained_->recipe, {}, at::kCPU);
  const fs::path picture = make_picture();
  const at::Tensor ours = draw({.given = {picture.string()}, .encoder = encoder.get()});
  const at::Tensor first =
      encoder->encode(read_pixels(picture, {.height = 16, .width = 24}).unsqueeze(0)).mean;
  EXPECT_LT((ours.select(2, 0) - first.select(2, 0)).abs().max().item<double>(), 1e-5);

  diffusion::Conditions both = conditions().conditions;
  both.frame_mask = at::ones({1, 6}, at::kBool);
  both.frame_mask.select(1, 0).fill_(false);
  both.given = at::zeros({1, 16, 6, 4, 6});
  both.given.select(2, 0).copy_(first.select(2, 0));
  diffusion::Conditions no_text = both;
  no_text.null_text = conditions().null.null_text;
  diffusion::Conditions nothing = no_text;
  nothing.given = at::zeros_like(both.given);
  at::Tensor z = noise(0, RandomPurpose::kInitialNoise);
  for (int64_t i = 0; i < kSteps; ++i) {
    const double t = time(i);
    const at::Tensor noised =
        (1.0 - t) * both.given + t * noise(static_cast<uint32_t>(i), RandomPurpose::kSamplerNoise);
    z.select(2, 0).copy_(noised.select(2, 0));
    const at::Tensor cond = velocity(z, t, both);
    at::Tensor v = cond;
    if (is_guided(i)) {
      const double upper = at::linspace(5.0, 1.0, kSteps, at::kDouble)[i].item<double>();
      const at::Tensor image = at::linspace(1.0, upper, 6, at::kFloat).view({6, 1, 1});
      const at::Tensor text_null = velocity(z, t, no_text);
      const at::Tensor all_null = velocity(z, t, nothing);
      v = all_null + image * (text_null - all_null) + kGuidance * (cond - text_null);
    }
    z = z + v * (t - time(i + 1));
  }
  z.select(2, 0).copy_(first.select(2, 0));
  EXPECT_LT(((ours - z).norm() / z.norm()).item<double>(), 1e-5);
}

TEST_F(OpenSoraPipelineTest, GuidanceByThePictureIsForModelsThatEmbedIt) {
  make("STDiT3");
  TrainedModel trained = load_trained(path_, kOnCpu);
  trained.recipe.sample.sampling.given_guidance = 5.0;
  const auto encoder = open_decoder(trained.recipe, {}, at::kCPU);
  Drawing drawing(trained,
                  {{.encoded = std::make_shared<Prompts>(prompts({.says = false})), .seed = 8}},
                  {.steps = 2,
                   .size = {.frames = 3, .height = 32, .width = 48},
                   .given = {make_picture().string()},
                   .encoder = encoder.get()});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return drawing.draw().dim(); }),
              HasSubstr("others need sample.given_guidance 1, got 5"));
}

TEST_F(OpenSoraPipelineTest, WhatItLacksIsNamed) {
  make("STDiT3");
  std::ofstream(path_ / "transformer/config.json")
      << R"({"model_type": "STDiT3", "qk_norm_legacy": true})";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path_, kOnCpu); }),
              AllOf(HasSubstr((path_ / "transformer/config.json").string()),
                    HasSubstr("qk_norm_legacy must be false")));
  make("STDiT3");
  const fs::path vae = path_ / "vae/config.json";
  const json good = json::parse(std::ifstream(vae));
  json other = good;
  other["_class_name"] = "AsymmetricAutoencoderKL";
  std::ofstream(vae) << other;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return read_recipe(path_, kOnCpu); }),
              AllOf(HasSubstr(vae.string()), HasSubstr("got AsymmetricAutoencoderKL")));
  std::ofstream(vae) << good;
  fs::rename(path_ / "vae", path_ / "elsewhere");
  EXPECT_THAT(
      error_of(ErrorKind::kIo, [&] { return decoder_path(read_recipe(path_, kOnCpu), {}); }),
      HasSubstr((path_ / "vae").string()));
  fs::rename(path_ / "elsewhere", path_ / "vae");
  const fs::path t5 = path_ / "text_encoder/config.json";
  std::ofstream(t5) << R"({"model_type": "clip_text_model"})";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return prompts({.says = false}); }),
              AllOf(HasSubstr((path_ / "text_encoder").string()), HasSubstr("reads T5's states")));
  fs::remove(t5);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts({.says = false}); }),
              HasSubstr(t5.string()));
  fs::remove(path_ / "transformer/model.safetensors");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return read_recipe(path_, kOnCpu); }),
              HasSubstr((path_ / "transformer").string()));
  make("STDiT3");
  fs::remove_all(path_ / "text_encoder");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return prompts({.says = false}); }),
              HasSubstr((path_ / "text_encoder").string()));
}

}  // namespace open_sora_pipeline_test
}  // namespace kinora::inference
