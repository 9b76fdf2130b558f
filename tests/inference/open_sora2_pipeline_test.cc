// Open-Sora 2's folder as its hub has it: a tiny one in that layout, with the text encoders of
// tests/inference/data/flux and random weights else.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/prompts.h"
#include "kinora/io/image.h"
#include "kinora/models/autoencoders/hunyuan_vae.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/ops/random.h"
#include "kinora/pipelines/pipeline.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "tests/data/files.h"
#include "tests/error_of.h"
#include "tests/ops/tensors.h"
#include "tests/places.h"

namespace kinora::inference {
namespace open_sora2_pipeline_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const LoadOptions kOnCpu = {.device = DeviceChoice::kCpu, .says = false};
constexpr const char* kFile = "Open_Sora_v2.safetensors";
constexpr const char* kClip = "openai/clip-vit-large-patch14";
constexpr const char* kT5 = "google/t5-v1_1-xxl";

fs::path flux() {
  return source_path("tests/inference/data/flux");
}

/// Random values for all parameters.
checkpoint::LateTensors random_weights(nn::Module& module, double scale) {
  checkpoint::LateTensors tensors;
  for (const auto& [path, parameter] : module.named_parameters()) {
    tensors.emplace(
        path, checkpoint::late_tensor(ops::normal(parameter->shape, std::ssize(tensors)) * scale));
  }
  return tensors;
}

/// Whose heads have 32 dims.
models::ModelConfig tiny_model(int64_t channels = 2, int64_t patch = 2) {
  models::ModelConfig model;
  model.architecture = "open_sora2";
  model.in_channels = channels;
  model.frames = 3;
  model.height = 4;
  model.width = 6;
  model.learn_sigma = false;
  model.num_classes = 1;
  model.time_scale = 1000.0;
  model.text_channels = 16;
  model.text_tokens = 512;
  model.pooled_channels = 16;
  model.transformer.depth = 1;
  model.transformer.parallel_depth = 2;
  model.transformer.hidden = 64;
  model.transformer.heads = 2;
  model.transformer.patch = patch;
  model.transformer.qk_norm = ops::Switch::kOn;
  model.transformer.given_embedders = true;
  model.transformer.rotary_axes = {4, 14, 14};
  return models::resolved(model);
}

class OpenSora2PipelineTest : public testing::Test {
 protected:
  OpenSora2PipelineTest() {
    write_transformer(kFile, tiny_model());
    write_autoencoder();
    // As openai's: a whole CLIP, whose text tower alone is read, before its projection.
    fs::create_directories(path() / kClip);
    fs::copy(flux() / "tokenizer", path() / kClip);
    json clip = {{"model_type", "clip"}, {"architectures", {"CLIPModel"}}, {"projection_dim", 16}};
    clip["text_config"] = json::parse(std::ifstream(flux() / "text_encoder/config.json"));
    std::ofstream(path() / kClip / "config.json") << clip;
    const auto text =
        checkpoint::WeightsFile::open(flux() / "text_encoder/model.safetensors", false);
    checkpoint::LateTensors tensors;
    for (const auto& [name, tensor] : text.tensors()) {
      tensors.emplace("text_model." + name, tensor);
    }
    for (const char* beside : {"text_projection.weight", "visual_projection.weight",
                               "vision_model.encoder.layers.0.self_attn.q_proj.weight"}) {
      tensors.emplace(beside, checkpoint::late_tensor(ops::normal({16, 16}, 1)));
    }
    checkpoint::write_weights(path() / kClip / "model.safetensors", tensors);
    fs::create_directories(path() / "google");
    fs::copy(flux() / "text_encoder_2", path() / kT5);
    fs::copy(flux() / "tokenizer_2", path() / kT5);
  }

  [[nodiscard]] const fs::path& path() const { return folder_.path(); }

  /// With the authors' names.
  void write_transformer(const std::string& name, const models::ModelConfig& model) const {
    checkpoint::LateTensors ours = random_weights(*models::make_model(model), 0.15);
    std::erase_if(ours, [](const auto& each) { return each.first.starts_with("null_"); });
    checkpoint::write_weights(
        path() / name,
        checkpoint::take_renamed(ours, models::family_of(model).original_naming(model)));
  }

  /// A small one, as a folder in the place of the file.
  void write_autoencoder() const {
    const fs::path vae = path() / "hunyuan_vae.safetensors";
    fs::create_directories(vae);
    const json config = {{"_class_name", "AutoencoderKLHunyuanVideo"},
                         {"block_out_channels", {8, 16}},
                         {"layers_per_block", 1},
                         {"latent_channels", 2},
                         {"norm_num_groups", 4},
                         {"scaling_factor", 0.5},
                         {"spatial_compression_ratio", 2},
                         {"temporal_compression_ratio", 2}};
    std::ofstream(vae / "config.json") << config;
    models::HunyuanVae model({.latent_channels = 2,
                              .block_out_channels = {8, 16},
                              .layers_per_block = 1,
                              .norm_num_groups = 4,
                              .spatial_compression_ratio = 2,
                              .temporal_compression_ratio = 2,
                              .scaling_factor = 0.5});
    checkpoint::write_weights(vae / "diffusion_pytorch_model.safetensors",
                              random_weights(model, 0.1));
  }

  [[nodiscard]] fs::path make_picture(const std::string& name, size_t step) const {
    io::Image image;
    io::set_size(image, 8, 12);
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      image.pixels[i] = static_cast<uint8_t>(i * step % 251);
    }
    io::write_png(path() / name, image);
    return path() / name;
  }

  [[nodiscard]] Prompts prompts(const std::vector<std::string>& captions,
                                const prompts::OpenSoraScores& scores = {}) const {
    return prompts_of_pipeline(pipelines::find_pipeline(path()).value(), captions,
                               read_recipe(path(), kOnCpu), {.scores = scores, .says = false});
  }

 private:
  data::TemporaryFolder folder_;
};

TEST_F(OpenSora2PipelineTest, TheModelIsThatOfItsWeights) {
  const ModelRecipe recipe = read_recipe(path(), kOnCpu);
  const models::TransformerConfig& own = recipe.model.transformer;
  const models::TransformerConfig tiny = tiny_model().transformer;
  EXPECT_EQ(own.depth, 1);
  EXPECT_EQ(own.parallel_depth, 2);
  EXPECT_EQ(own.hidden, 64);
  EXPECT_EQ(own.heads, 2);
  EXPECT_EQ(own.patch, 2);
  EXPECT_EQ(own.mlp_hidden(), tiny.mlp_hidden());
  EXPECT_EQ(own.rotary_axes, tiny.rotary_axes);
  EXPECT_TRUE(own.given_embedders);
  EXPECT_EQ(recipe.model.text_channels, 16);
  EXPECT_EQ(recipe.model.pooled_channels, 16);
  EXPECT_EQ(recipe.model.in_channels, 2);
  EXPECT_EQ(recipe.model.compression, 2);
  EXPECT_EQ(recipe.model.frames, 65) << "129 frames";
  EXPECT_EQ(recipe.model.height * 2, 192);
  EXPECT_EQ(recipe.model.width * 2, 336);
  EXPECT_EQ(recipe.sample.sampling.steps, 50);

  // Without it there its latents are the published ones, of 16 channels.
  fs::remove_all(path() / "hunyuan_vae.safetensors");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)read_recipe(path(), kOnCpu); }),
              HasSubstr("patches of 8 values, which are none of an autoencoder of 16 channels"));
}

// scripts/diffusion/inference.py: add_fps_info_to_text and add_motion_score_to_text.
TEST_F(OpenSora2PipelineTest, CaptionsSayFramesASecondAndMotion) {
  const auto pipeline = pipelines::find_pipeline(flux()).value();
  const ModelRecipe recipe = read_recipe(
      flux(), {.device = DeviceChoice::kCpu, .overrides = {"model.height=8"}, .says = false});
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"a cat", "a cat. 24 FPS. 4 motion score."},
      {"A dog. ", "A dog. 24 FPS. 4 motion score."},
      {"rain. 16 FPS.", "rain. 16 FPS. 4 motion score."}};
  std::vector<std::string> given;
  std::vector<std::string> meant;
  for (const auto& [text, full] : texts) {
    given.push_back(text);
    meant.push_back(full);
  }
  const Prompts ours = prompts(given);
  const Prompts theirs = prompts_of_pipeline(pipeline, meant, recipe, {.says = false});
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(ours.all[i].text.tokens, theirs.all[i].text.tokens) << given[i];
    EXPECT_EQ(ours.all[i].text.pooled, theirs.all[i].text.pooled) << given[i];
  }
  // The negative caption is read as it is.
  EXPECT_EQ(ours.negative.value().tokens, theirs.negative.value().tokens);
  const Prompts faster = prompts({"a cat"}, {.motion = 7.0});
  EXPECT_EQ(
      faster.all[0].text.tokens,
      prompts_of_pipeline(pipeline, {"a cat. 24 FPS. 7 motion score."}, recipe, {.says = false})
          .all[0]
          .text.tokens);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)prompts({"a cat"}, {.aesthetic = 6.0}); }),
              HasSubstr("frames a second and a score of motion alone"));
}

// opensora/utils/sampling.py: get_schedule and I2VDenoiser.
class OpenSora2SamplerTest : public OpenSora2PipelineTest {
 protected:
  static constexpr int64_t kSteps = 13;
  static constexpr double kGuidance = 7.5;
  static constexpr uint64_t kSeed = 8;
  static constexpr int64_t kLatents = 3;

  OpenSora2SamplerTest()
      : trained_(load_trained(path(), kOnCpu)), encoded_(prompts({"a red circle", "a square"})) {}

  at::Tensor draw(DrawOptions options) {
    options.steps = kSteps;
    options.size = {.frames = 6, .height = 8, .width = 12};
    return Drawing(trained_, {{.encoded = std::make_shared<Prompts>(encoded_), .seed = kSeed}},
                   options)
        .draw();
  }

  /// Of sample i.
  [[nodiscard]] pipelines::DrawConditions conditions(int64_t i) const {
    models::ModelConfig model = trained_.recipe.model;
    model.frames = kLatents;
    model.height = 4;
    model.width = 6;
    return conditions_of_prompts(encoded_, model, 24.0, at::kCPU)(i, 1);
  }
  [[nodiscard]] static diffusion::Conditions without_text(const pipelines::DrawConditions& both) {
    diffusion::Conditions without = both.conditions;
    for (const auto& [name, tensor] : diffusion::kConditions) {
      if ((both.null.*tensor).defined()) {
        without.*tensor = both.null.*tensor;
      }
    }
    return without;
  }

  [[nodiscard]] static at::Tensor noise(int64_t i) {
    return ops::random_normal({1, 2, kLatents, 4, 6}, at::full({1}, i, at::kLong), kSeed, 0,
                              RandomPurpose::kInitialNoise, at::kCPU);
  }
  at::Tensor velocity(const at::Tensor& z, double t, const diffusion::Conditions& conditions) {
    return trained_.model->forward(z, at::full({1}, t, at::kFloat), conditions);
  }
  /// A frame has 2 x 3 patches.
  static double time(int64_t i) {
    const double shift = (1.0 + 2.0 * (6.0 - 256.0) / (4096.0 - 256.0)) * std::sqrt(3.0);
    const double t = 1.0 - static_cast<double>(i) / kSteps;
    return shift * t / (1.0 + (shift - 1.0) * t);
  }
  static bool is_guided(int64_t i) { return i < 10 || i % 2 == 0; }

  const at::NoGradGuard no_grad_;
  TrainedModel trained_;
  Prompts encoded_;
};

TEST_F(OpenSora2SamplerTest, ClipsOfWordsAreThoseOfItsSampler) {
  const at::Tensor ours = draw({});
  const pipelines::DrawConditions both = conditions(0);
  at::Tensor z = noise(0);
  for (int64_t i = 0; i < kSteps; ++i) {
    const at::Tensor cond = velocity(z, time(i), both.conditions);
    const at::Tensor null = velocity(z, time(i), without_text(both));
    z = z + (time(i + 1) - time(i)) * (null + (is_guided(i) ? kGuidance : 1.0) * (cond - null));
  }
  EXPECT_LT(((ours[0] - z[0]).norm() / z.norm()).item<double>(), 1e-5);
  const auto decoder = open_decoder(trained_.recipe, {}, at::kCPU);
  EXPECT_EQ(decoder->decode(ours).sizes(), (at::IntArrayRef{2, 3, 5, 8, 12}));
}

// Each clip goes on from a picture of its own.
TEST_F(OpenSora2SamplerTest, ClipsOfPicturesAreThoseOfItsSampler) {
  const auto encoder = open_decoder(trained_.recipe, {}, at::kCPU);
  const std::vector<std::string> pictures = {make_picture("first.png", 7).string(),
                                             make_picture("second.png", 11).string()};
  const at::Tensor ours = draw({.given = pictures, .encoder = encoder.get()});
  for (int64_t sample = 0; sample < 2; ++sample) {
    const at::Tensor first =
        encoder
            ->encode(read_pixels(pictures[static_cast<size_t>(sample)], {.height = 8, .width = 12})
                         .unsqueeze(0))
            .mean;
    pipelines::DrawConditions both = conditions(sample);
    both.conditions.frame_mask = at::ones({1, kLatents}, at::kBool);
    both.conditions.frame_mask.select(1, 0).fill_(false);
    both.conditions.given = at::zeros({1, 2, kLatents, 4, 6});
    both.conditions.given.select(2, 0).copy_(first.select(2, 0));
    const diffusion::Conditions no_text = without_text(both);
    diffusion::Conditions nothing = no_text;
    nothing.frame_mask = at::ones({1, kLatents}, at::kBool);
    nothing.given = at::zeros({1, 2, kLatents, 4, 6});
    at::Tensor z = noise(sample);
    for (int64_t i = 0; i < kSteps; ++i) {
      const at::Tensor cond = velocity(z, time(i), both.conditions);
      const at::Tensor null = velocity(z, time(i), no_text);
      const at::Tensor none = velocity(z, time(i), nothing);
      at::Tensor image = at::ones({1});
      if (is_guided(i)) {
        const double upper = at::linspace(3.0, 1.0, kSteps + 1, at::kDouble)[i].item<double>();
        image = at::linspace(1.0, upper, kLatents, at::kFloat).view({kLatents, 1, 1});
      }
      const at::Tensor v =
          none + image * (null - none) + (is_guided(i) ? kGuidance : 1.0) * (cond - null);
      z = z + (time(i + 1) - time(i)) * v;
    }
    z.select(2, 0).copy_(first.select(2, 0));
    EXPECT_LT(((ours[sample] - z[0]).norm() / z.norm()).item<double>(), 1e-5) << sample;
  }
}

TEST_F(OpenSora2PipelineTest, TheFormOfHighCompressionIsChosenByItsFile) {
  EXPECT_FALSE(pipelines::find_pipeline(path() / "hunyuan_vae.safetensors"));
  const fs::path other = path() / "Open_Sora_v2_Video_DC_AE.safetensors";
  write_transformer(other.filename().string(), tiny_model(128, 1));
  EXPECT_EQ(read_recipe(path(), kOnCpu).model.width * 2, 336);
  const ModelRecipe recipe = read_recipe(other, kOnCpu);
  EXPECT_EQ(recipe.model.transformer.patch, 1);
  EXPECT_EQ(recipe.model.frames, 32) << "128 frames";
  EXPECT_EQ(recipe.model.height * 32, 576);
  EXPECT_EQ(recipe.model.width * 32, 1024);
  EXPECT_EQ(fs::path(recipe.autoencoder.path).filename(), "F32T4C128_AE.safetensors");
  EXPECT_EQ(load_trained(other, kOnCpu).recipe.model.transformer.depth, 1);
  // By itself a file is weights as any others.
  data::TemporaryFolder alone;
  fs::copy(path() / kFile, alone.path());
  EXPECT_FALSE(pipelines::find_pipeline(alone.path() / kFile));
}

TEST_F(OpenSora2PipelineTest, ItsEncodersAreForTrainingToo) {
  EXPECT_EQ(pipelines::find_tokenizer(path()), path() / kT5);
  EXPECT_EQ(pipelines::described_text_encoder(path())->kind(), "T5 and CLIP");
  EXPECT_EQ(pipelines::described_text_encoder(path())->pooled_width(), 16);
  EXPECT_EQ(pipelines::tokenizers_beside(path()).size(), 1U);
}

TEST_F(OpenSora2PipelineTest, WhatIsMissingIsNamed) {
  fs::remove_all(path() / kT5);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { (void)prompts({"a cat"}); }),
              AllOf(HasSubstr("(Open-Sora 2) lacks"), HasSubstr("google/t5-v1_1-xxl")));
}

}  // namespace open_sora2_pipeline_test
}  // namespace kinora::inference
