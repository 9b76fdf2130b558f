// CogVideoX from words and from a picture: tiny pipelines that diffusers wrote, and what it draws
// with them (tools/reference/make_pipeline_fixtures.py).

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
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/diffusers_model.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace cogvideox_pipeline_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::HasSubstr;

class CogVideoXPipelineTest : public testing::Test {
 protected:
  CogVideoXPipelineTest() { fs::create_directories(scratch_); }
  ~CogVideoXPipelineTest() override { fs::remove_all(scratch_); }

  static fs::path data(const std::string& name) {
    return source_path("tests/inference/data") / name;
  }
  /// The pipeline of a folder that holds what is different of cogvideox/.
  [[nodiscard]] fs::path whole(const std::string& name) const {
    const fs::path path = scratch_ / name;
    fs::copy(data("cogvideox"), path, fs::copy_options::recursive);
    fs::remove_all(path / "transformer");
    fs::copy(data(name), path, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    return path;
  }
  static LoadOptions options(const std::vector<std::string>& more = {}) {
    LoadOptions options{.device = DeviceChoice::kCpu,
                        .overrides = {"model.frames=3", "model.height=4", "model.width=6"},
                        .says = false};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    return options;
  }
  static Prompts prompts(const fs::path& path, const ModelRecipe& recipe) {
    const WeightsFile drawn = WeightsFile::open(path / "drawn.safetensors");
    return prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(drawn.metadata("prompts")).get<std::vector<std::string>>(), recipe,
        {.negative = drawn.metadata("negative"), .says = false});
  }
  /// Draws with diffusers' noise and compares latents, and pictures of "latents", with its.
  static void expect_as_diffusers(const fs::path& path, const std::vector<std::string>& overrides,
                                  const std::string& name = "latents") {
    const WeightsFile expected = WeightsFile::open(path / "drawn.safetensors");
    TrainedModel trained = load_trained(path, options(overrides));
    const ModelRecipe& recipe = trained.recipe;
    const auto encoded = std::make_shared<const Prompts>(prompts(path, recipe));
    const auto decoder = open_decoder(recipe, {}, at::kCPU);
    Drawing drawing(trained, {{.encoded = encoded, .seed = std::stoull(expected.metadata("seed"))}},
                    {.steps = 4, .encoder = decoder.get()});
    if (models::shape_of(recipe.model).channels_beside > 0) {
      const std::vector<EndFrames> frames =
          read_end_frames({(path / "first.png").string()}, "", recipe.model);
      drawing.set_start({.beside = shown_frames(frames, recipe.model, decoder.get(), at::kCPU)});
    }
    const at::Tensor latents = drawing.draw();
    EXPECT_LT(distance(latents, expected.read(name)), 1e-4);
    if (name != "latents") {
      return;
    }
    expect_pictures(*decoder, latents, expected.read("pictures"));
  }
  static void change(const fs::path& file, const json& changes) {
    std::ifstream in(file);
    json values = json::parse(in);
    in.close();
    values.update(changes);
    std::ofstream(file) << values;
  }
  [[nodiscard]] const fs::path& scratch() const { return scratch_; }

 private:
  fs::path scratch_ = fs::path(testing::TempDir()) / ("cogvideox-" + std::to_string(::getpid()));
};

TEST_F(CogVideoXPipelineTest, StatesAreThoseOfDiffusersWithTheirPadding) {
  const fs::path path = data("cogvideox");
  const Prompts ours = prompts(path, read_recipe(path, options()));
  const at::Tensor states = WeightsFile::open(path / "drawn.safetensors").read("states");
  EXPECT_EQ(ours.shape.length, 226);
  std::vector<data::Text> texts;
  for (const Prompt& prompt : ours.all) {
    texts.push_back(prompt.text);
  }
  texts.push_back(ours.negative.value());
  ASSERT_EQ(std::ssize(texts) * 226, states.size(0));
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    const data::Text& text = texts[static_cast<size_t>(i)];
    EXPECT_EQ(text.length, 226);
    EXPECT_LT(distance(at::tensor(text.tokens).view({226, -1}), states.narrow(0, 226 * i, 226)),
              5e-6)
        << i;
  }
}

TEST_F(CogVideoXPipelineTest, ClipsAreThoseOfDiffusers) {
  const fs::path path = data("cogvideox");
  const ModelRecipe recipe = read_recipe(path, {.device = DeviceChoice::kCpu, .says = false});
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 6.0);
  EXPECT_EQ(recipe.objective.snr_shift, 3.0);
  EXPECT_TRUE(recipe.objective.zero_terminal_snr);
  EXPECT_EQ(clip_fps(recipe.data), 8.0);
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{4, 3, 4, 6}));
  expect_as_diffusers(path, {});
}

TEST_F(CogVideoXPipelineTest, ClipsFromClipsAreThoseOfDiffusers) {
  const fs::path path = data("cogvideox");
  const WeightsFile expected = WeightsFile::open(path / "drawn.safetensors");
  TrainedModel trained = load_trained(path, options());
  const auto encoded = std::make_shared<const Prompts>(prompts(path, trained.recipe));
  Drawing drawing(trained, {{.encoded = encoded, .seed = std::stoull(expected.metadata("seed"))}},
                  {.steps = 8});
  drawing.set_start({.data = expected.read("data"), .strength = 0.6});
  EXPECT_LT(distance(drawing.draw(), expected.read("latents.strength")), 1e-4);
}

TEST_F(CogVideoXPipelineTest, TheOtherSchedulerAndDynamicGuidanceAreThoseOfDiffusers) {
  const fs::path path = scratch() / "dpm";
  fs::copy(data("cogvideox"), path, fs::copy_options::recursive);
  std::ofstream(path / "scheduler/scheduler_config.json")
      << WeightsFile::open(path / "drawn.safetensors").metadata("latents.dpm");
  expect_as_diffusers(path, {"sample.guidance_dynamic=true"}, "latents.dpm");
}

TEST_F(CogVideoXPipelineTest, AFirstFrameGoesOnAsDiffusersLetsIt) {
  expect_as_diffusers(whole("cogvideox_i2v"), {});
}

// Of 3 latent frames 4 are drawn, of which the first is left out.
TEST_F(CogVideoXPipelineTest, PatchesOfTwoFramesAreFilledAsByDiffusers) {
  const fs::path path = whole("cogvideox_15_i2v");
  EXPECT_EQ(clip_fps(read_recipe(path, options()).data), 16.0);
  expect_as_diffusers(path, {});
}

TEST_F(CogVideoXPipelineTest, ConvertsToDiffusersAndBack) {
  for (const std::string name : {"cogvideox", "cogvideox_i2v", "cogvideox_15_i2v"}) {
    const fs::path own = scratch() / (name + ".safetensors");
    const fs::path back = scratch() / (name + "-back");
    const fs::path from = name == "cogvideox" ? data(name) : whole(name);
    (void)convert_weights({.from = from, .to = own});
    (void)convert_weights({.from = own, .to = back});
    expect_tensors_of(from / "transformer", back / "transformer");
    std::ifstream written(back / "transformer/config.json");
    std::ifstream read(from / "transformer/config.json");
    const json described = json::parse(written);
    const json published = json::parse(read);
    for (const auto& [key, value] : described.items()) {
      if (!key.starts_with("_")) {
        EXPECT_EQ(published.value(key, json()), value) << name << ": " << key;
      }
    }
  }
}

TEST_F(CogVideoXPipelineTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [this](const std::string& file, const json& changes) {
    const fs::path path = scratch() / "refused";
    fs::remove_all(path);
    fs::copy(data("cogvideox"), path, fs::copy_options::recursive);
    change(path / file, changes);
    return error_of(ErrorKind::kConfig,
                    [&] { return prompts(path, read_recipe(path, options())); });
  };
  EXPECT_THAT(refusal("transformer/config.json", {{"in_channels", 5}}),
              HasSubstr("in_channels must be out_channels, or of image to video twice as many"));
  EXPECT_THAT(
      refusal("transformer/config.json", {{"in_channels", 8}}),
      HasSubstr("is a model that is shown given frames, but a CogVideoXPipeline shows none"));
  EXPECT_THAT(refusal("transformer/config.json", {{"patch_size_t", 1}}),
              HasSubstr("patch_size_t must be null, or 2 or more"));
  EXPECT_THAT(refusal("transformer/config.json", {{"ofs_embed_dim", 8}}),
              HasSubstr("ofs_embed_dim must be 12"));
  EXPECT_THAT(refusal("transformer/config.json", {{"text_embed_dim", 9}}),
              HasSubstr("states of 16 channels, but CogVideoX takes 9"));
  EXPECT_THAT(refusal("vae/config.json", {{"use_quant_conv", true}}),
              HasSubstr("use_quant_conv must be false"));
}

}  // namespace cogvideox_pipeline_test
}  // namespace kinora::inference
