// HunyuanVideo from words: a tiny pipeline that diffusers wrote, and what it draws with it
// (tools/reference/make_pipeline_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/pipelines/diffusers_model.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace hunyuan_video_pipeline_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class HunyuanVideoPipelineTest : public testing::Test {
 protected:
  HunyuanVideoPipelineTest() { fs::create_directories(scratch_); }
  ~HunyuanVideoPipelineTest() override { fs::remove_all(scratch_); }

  static fs::path folder() { return source_path("tests/inference/data/hunyuan_video"); }
  static WeightsFile drawn() { return WeightsFile::open(folder() / "drawn.safetensors"); }
  static LoadOptions options() {
    return {.device = DeviceChoice::kCpu,
            .overrides = {"model.frames=3", "model.height=4", "model.width=6"},
            .says = false};
  }
  static Prompts prompts(const fs::path& path = folder()) {
    return prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(drawn().metadata("prompts")).get<std::vector<std::string>>(),
        read_recipe(path, options()), {.negative = drawn().metadata("negative"), .says = false});
  }
  /// What is drawn with diffusers' noise, with those other keys.
  static at::Tensor latents(const std::vector<std::string>& overrides = {}) {
    LoadOptions changed = options();
    changed.overrides.insert(changed.overrides.end(), overrides.begin(), overrides.end());
    TrainedModel trained = load_trained(folder(), changed);
    const auto encoded = std::make_shared<const Prompts>(prompts());
    return Drawing(trained, {{.encoded = encoded, .seed = std::stoull(drawn().metadata("seed"))}},
                   {.steps = 4})
        .draw();
  }
  /// A copy whose file has these changes.
  [[nodiscard]] fs::path changed(const fs::path& file, const json& changes) const {
    const fs::path path = scratch_ / "pipeline";
    fs::remove_all(path);
    fs::copy(folder(), path, fs::copy_options::recursive);
    std::ifstream in(path / file);
    json values = json::parse(in);
    values.update(changes);
    std::ofstream(path / file) << values;
    return path;
  }
  [[nodiscard]] const fs::path& scratch() const { return scratch_; }

 private:
  fs::path scratch_ = fs::path(testing::TempDir()) / ("hunyuan-" + std::to_string(::getpid()));
};

TEST_F(HunyuanVideoPipelineTest, StatesAndVectorsAreThoseOfDiffusers) {
  const Prompts ours = prompts();
  EXPECT_EQ(ours.shape.length, 256);
  expect_states(ours, drawn(), /*has_vectors=*/true);
}

TEST_F(HunyuanVideoPipelineTest, ClipsAreThoseOfDiffusers) {
  const WeightsFile expected = drawn();
  const ModelRecipe recipe = read_recipe(folder(), options());
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 1.0);
  EXPECT_EQ(recipe.model.transformer.guidance, 6.0);
  EXPECT_EQ(clip_fps(recipe.data), 24.0);
  const at::Tensor ours = latents();
  EXPECT_LT(distance(ours, expected.read("latents")), 1e-4);
  EXPECT_LT(distance(latents({"sample.guidance=3"}), expected.read("latents.guided")), 1e-4);
  const auto decoder = open_decoder(recipe, {}, at::kCPU);
  expect_pictures(*decoder, ours, expected.read("pictures"));
}

TEST_F(HunyuanVideoPipelineTest, SizesAreThosePublished) {
  const ModelRecipe recipe = read_recipe(folder(), {.device = DeviceChoice::kCpu, .says = false});
  // 129 frames of 720 x 1280 pixels.
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{4, 33, 90, 160}));
  EXPECT_EQ(recipe.model.compression, 8);
}

// As a run encodes them, on line or into a cache.
TEST_F(HunyuanVideoPipelineTest, CaptionsOfARunStandInTheTemplate) {
  ModelRecipe recipe = read_recipe(folder(), options());
  recipe.text.encoder = folder().string();
  recipe.text.precision = Precision::kFp32;
  const data::CaptionTokens tokens = caption_tokens(recipe).value();
  EXPECT_FALSE(tokens.cleans || tokens.pads);
  EXPECT_EQ(tokens.max_length, 256 + 95 + 77);
  EXPECT_EQ(data::own_length(tokens), 256 + 95);
  const Prompts ours = prompts_of_encoder(
      json::parse(drawn().metadata("prompts")).get<std::vector<std::string>>(), recipe, at::kCPU);
  const Prompts theirs = prompts();
  ASSERT_EQ(ours.all.size(), theirs.all.size());
  EXPECT_EQ(ours.shape.length, 256);
  for (size_t i = 0; i < ours.all.size(); ++i) {
    EXPECT_EQ(ours.all[i].text.length, theirs.all[i].text.length);
    EXPECT_LT(distance(at::tensor(ours.all[i].text.tokens), at::tensor(theirs.all[i].text.tokens)),
              5e-6);
    EXPECT_LT(distance(at::tensor(ours.all[i].text.pooled), at::tensor(theirs.all[i].text.pooled)),
              5e-6);
  }
  // An empty caption is one state.
  EXPECT_EQ(prompts_of_encoder({""}, recipe, at::kCPU).all.front().text.length, 1);
}

TEST_F(HunyuanVideoPipelineTest, ConvertsToTheAuthorsFileAndBack) {
  const fs::path own = scratch() / "own.safetensors";
  const fs::path file = scratch() / "authors.safetensors";
  (void)convert_weights({.from = folder(), .to = own});
  (void)convert_weights({.from = own, .to = file, .layout = ConvertOptions::Layout::kAuthors});
  EXPECT_THAT(WeightsFile::open(file).names(),
              AllOf(Contains("double_blocks.1.txt_attn_qkv.weight"),
                    Contains("txt_in.individual_token_refiner.blocks.1.self_attn_qkv.bias"),
                    Contains("final_layer.adaLN_modulation.1.weight")));
  const fs::path back = scratch() / "back";
  (void)convert_weights({.from = own, .to = back});
  expect_tensors_of(folder() / "transformer", back / "transformer");
  // What the authors' keys are read as.
  const auto ours = pipelines::open_weights(folder() / "transformer", false);
  const auto theirs = pipelines::open_weights(file, false);
  for (const std::string& name : ours.names()) {
    EXPECT_TRUE(theirs.read(name).equal(ours.read(name))) << name;
  }
  std::ifstream written(back / "transformer/config.json");
  std::ifstream read(folder() / "transformer/config.json");
  const json described = json::parse(written);
  const json published = json::parse(read);
  for (const auto& [key, value] : published.items()) {
    if (key != "_diffusers_version" && key != "_name_or_path") {
      EXPECT_EQ(described.value(key, json()), value) << key;
    }
  }
}

TEST_F(HunyuanVideoPipelineTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [this](const fs::path& file, const json& changes) {
    const fs::path path = changed(file, changes);
    return error_of(ErrorKind::kConfig, [&] { return prompts(path); });
  };
  EXPECT_THAT(refusal("text_encoder/config.json", {{"hidden_size", 40}}),
              AllOf(HasSubstr("states of 40 channels"), HasSubstr("takes 16")));
  EXPECT_THAT(refusal("text_encoder/config.json", {{"num_key_value_heads", 3}}),
              HasSubstr("must be a multiple of num_key_value_heads"));
  EXPECT_THAT(refusal("text_encoder/config.json", {{"attention_bias", true}}),
              HasSubstr("attention_bias must be false"));
  EXPECT_THAT(refusal("text_encoder/config.json", {{"rope_parameters", {{"rope_type", "llama3"}}}}),
              HasSubstr("rope_type must be"));
  EXPECT_THAT(refusal("text_encoder_2/config.json", {{"model_type", "t5"}}),
              HasSubstr("must be a CLIP, as SDXL's and those beside the T5"));
  EXPECT_THAT(refusal("transformer/config.json", {{"image_condition_type", "token_replace"}}),
              HasSubstr("is a model that is shown given frames, but a HunyuanVideoPipeline shows "
                        "none"));
  EXPECT_THAT(refusal("transformer/config.json", {{"pooled_projection_dim", 9}}),
              HasSubstr("pooled vectors of 16 numbers, but HunyuanVideo takes 9"));
  EXPECT_THAT(refusal("transformer/config.json", {{"patch_size_t", 2}}),
              HasSubstr("patch_size_t must be 1"));
}

}  // namespace hunyuan_video_pipeline_test
}  // namespace kinora::inference
