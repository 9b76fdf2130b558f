// HunyuanVideo from a first picture: what diffusers draws with tiny pipelines of both kinds
// (tools/reference/make_pipeline_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
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
#include "kinora/inference/given_frames.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace hunyuan_video_i2v_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kClean = "hunyuan_video_i2v";
constexpr const char* kBeside = "hunyuan_video_i2v_33ch";

class HunyuanVideoI2vTest : public testing::TestWithParam<const char*> {
 protected:
  HunyuanVideoI2vTest() { fs::create_directories(scratch_); }
  ~HunyuanVideoI2vTest() override { fs::remove_all(scratch_); }

  /// The pipeline of a folder that holds what is different of others.
  [[nodiscard]] fs::path whole(const std::string& name) const {
    const fs::path data = source_path("tests/inference/data");
    const fs::path path = scratch_ / name;
    fs::remove_all(path);
    fs::copy(data / "hunyuan_video", path, fs::copy_options::recursive);
    fs::remove_all(path / "transformer");
    fs::remove_all(path / "text_encoder");
    for (const std::string& part : {std::string(kClean), name}) {
      fs::copy(data / part, path,
               fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    }
    return path;
  }
  static void change(const fs::path& file, const json& changes) {
    std::ifstream in(file);
    json values = json::parse(in);
    values.update(changes);
    std::ofstream(file) << values;
  }
  static LoadOptions options(const std::vector<std::string>& more = {}) {
    LoadOptions options{.device = DeviceChoice::kCpu,
                        .overrides = {"model.frames=3", "model.height=4", "model.width=6"},
                        .says = false};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    return options;
  }
  static WeightsFile drawn(const fs::path& path) {
    return WeightsFile::open(path / "drawn.safetensors");
  }
  static CaptionOptions captions(const fs::path& path) {
    return {.negative = drawn(path).metadata("negative"),
            .says = false,
            .pictures = {read_picture(path / "first.png")}};
  }
  static Prompts prompts(const fs::path& path, const CaptionOptions& how) {
    return prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(drawn(path).metadata("prompts")).get<std::vector<std::string>>(),
        read_recipe(path, options()), how);
  }
  /// What is drawn with diffusers' noise.
  static at::Tensor latents(const fs::path& path, double guidance,
                            const std::vector<std::string>& overrides = {}) {
    TrainedModel trained = load_trained(path, options(overrides));
    const auto encoded = std::make_shared<const Prompts>(prompts(path, captions(path)));
    const auto encoder = open_decoder(trained.recipe, {}, at::kCPU);
    const bool is_beside = models::shape_of(trained.recipe.model).channels_beside > 0;
    DrawOptions draws{.steps = 4, .encoder = encoder.get()};
    if (!is_beside) {
      draws.given = {(path / "first.png").string()};
    }
    Drawing drawing(trained,
                    {{.encoded = encoded,
                      .seed = std::stoull(drawn(path).metadata("seed")),
                      .guidance = guidance}},
                    draws);
    if (is_beside) {
      const std::vector<EndFrames> ends =
          read_end_frames({(path / "first.png").string()}, "", trained.recipe.model);
      drawing.set_start(
          {.beside = shown_frames(ends, trained.recipe.model, encoder.get(), at::kCPU)});
    }
    return drawing.draw();
  }

 private:
  fs::path scratch_ = fs::path(testing::TempDir()) / ("hunyuan-i2v-" + std::to_string(::getpid()));
};

TEST_P(HunyuanVideoI2vTest, StatesOfPictureAndCaptionAreThoseOfDiffusers) {
  const fs::path path = whole(GetParam());
  const Prompts ours = prompts(path, captions(path));
  const bool is_clean = std::string(GetParam()) == kClean;
  EXPECT_EQ(ours.shape.length, 24 * 24 / (is_clean ? 4 : 2) + 252);
  expect_states(ours, drawn(path), /*has_vectors=*/true);
}

TEST_P(HunyuanVideoI2vTest, ClipsAreThoseOfDiffusers) {
  const fs::path path = whole(GetParam());
  const at::Tensor ours = latents(path, 1.0);
  EXPECT_LT(distance(ours, drawn(path).read("latents")), 1e-4);
  EXPECT_LT(distance(latents(path, 3.0), drawn(path).read("latents.guided")), 1e-4);
  const auto decoder = open_decoder(read_recipe(path, options()), {}, at::kCPU);
  expect_pictures(*decoder, ours.narrow(0, 0, 1), drawn(path).read("pictures"));
}

TEST_P(HunyuanVideoI2vTest, ConvertsAndComesBack) {
  const fs::path path = whole(GetParam());
  const fs::path back = path / "back";
  (void)convert_weights({.from = path, .to = back});
  expect_tensors_of(path / "transformer", back / "transformer");
  std::ifstream written(back / "transformer/config.json");
  std::ifstream read(path / "transformer/config.json");
  const json described = json::parse(written);
  const json published = json::parse(read);
  for (const auto& [key, value] : published.items()) {
    if (key != "_diffusers_version" && key != "_name_or_path") {
      EXPECT_EQ(described.value(key, json()), value) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HunyuanVideoI2vTest, testing::Values(kClean, kBeside),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(HunyuanVideoI2vTest, RecipesAreThosePublished) {
  const LoadOptions how{.device = DeviceChoice::kCpu, .says = false};
  const ModelRecipe clean = read_recipe(whole(kClean), how);
  EXPECT_TRUE(clean.model.transformer.clean_first_frame);
  EXPECT_EQ(clean.model.transformer.guidance, 6.0);
  EXPECT_EQ(clean.model.sample_shape(), (std::vector<int64_t>{4, 33, 90, 160}));
  EXPECT_TRUE(clean.frame_masks.any());
  EXPECT_EQ(clean.sample.sampling.steps, 50);
  EXPECT_EQ(clean.sample.sampling.guidance, 1.0);
  EXPECT_EQ(models::shape_of(clean.model).decoded_before, 0);
  const ModelRecipe beside = read_recipe(whole(kBeside), how);
  EXPECT_EQ(beside.model.in_channels, 4);
  EXPECT_EQ(beside.model.transformer.guidance, 0.0);
  EXPECT_EQ(models::shape_of(beside.model).channels_beside, 5);
  EXPECT_EQ(models::shape_of(beside.model).decoded_before, 4);
}

// Captions and pictures in turn: as many prompts as there are pairs.
TEST_F(HunyuanVideoI2vTest, CaptionsAreReadWithPicturesInTurn) {
  const fs::path path = whole(kClean);
  CaptionOptions how = captions(path);
  io::Image grey = how.pictures.front();
  std::fill(grey.pixels.begin(), grey.pixels.end(), uint8_t{128});
  how.pictures.push_back(grey);
  const Prompts both = prompts(path, how);
  const Prompts first = prompts(path, captions(path));
  ASSERT_EQ(both.all.size(), 6U);
  EXPECT_EQ(both.all[0].text.tokens, first.all[0].text.tokens);
  EXPECT_EQ(both.all[4].text.tokens, first.all[1].text.tokens);
  EXPECT_EQ(both.all[3].caption, first.all[0].caption);
  EXPECT_GT(distance(at::tensor(both.all[3].text.tokens), at::tensor(first.all[0].text.tokens)),
            1e-3);
  EXPECT_EQ(both.negative->tokens, first.negative->tokens);
}

TEST_F(HunyuanVideoI2vTest, BlocksThatAreReadOneByOneGiveTheSame) {
  const fs::path path = whole(kClean);
  models::TextTokens texts;
  texts.ids.resize(120 + 77, 7);
  texts.ids[5] = 515;  // <image>
  texts.ids.back() = 1063;
  texts.lengths = {120 + 77};
  const auto states = [&](const pipelines::TextEncoderOptions& how) {
    const auto encoder = pipelines::open_text_encoder(path, how);
    encoder->show(at::full({3, 336, 336}, 0.5, at::kFloat));
    return encoder->encode(texts).states;
  };
  const at::Tensor whole_states = states({});
  EXPECT_EQ(whole_states.size(0), 144 + 120 - 103 - 4);
  EXPECT_TRUE(states({.streamed = true}).equal(whole_states));
}

TEST_F(HunyuanVideoI2vTest, WhatDoesNotFitIsRefused) {
  const fs::path path = whole(kClean);
  const auto refusal = [](const auto& call) { return error_of(ErrorKind::kConfig, call); };
  CaptionOptions blind = captions(path);
  blind.pictures.clear();
  EXPECT_THAT(refusal([&] { (void)prompts(path, blind); }),
              HasSubstr("are read with the first frame. Hint: --image FILE"));
  const fs::path words = source_path("tests/inference/data/hunyuan_video");
  EXPECT_THAT(refusal([&] { (void)prompts(words, captions(path)); }),
              HasSubstr("are read without pictures"));
  // Of words alone it takes no frame.
  const std::vector<std::string> first = {(path / "first.png").string()};
  const auto given = [&](const fs::path& folder, const DrawOptions& draws) {
    return refusal([&] {
      TrainedModel trained = load_trained(folder, options());
      const auto encoder = open_decoder(trained.recipe, {}, at::kCPU);
      DrawOptions how = draws;
      how.encoder = encoder.get();
      const auto encoded = std::make_shared<const Prompts>(
          folder == words ? Prompts() : prompts(path, captions(path)));
      (void)Drawing(trained, {{.encoded = encoded}}, how);
    });
  };
  EXPECT_THAT(given(words, {.given = first}),
              HasSubstr("where it goes on from a picture. Hint: a folder of image to video"));
  EXPECT_THAT(given(path, {.given = first, .last = first.front()}),
              HasSubstr("goes on from one frame, the first"));
  EXPECT_THAT(given(path, {.given = first, .given_frames = "1"}),
              HasSubstr("goes on from one frame, the first"));
  EXPECT_THAT(given(path, {.given = first, .pieces = 2, .overlap = 1}),
              HasSubstr("goes on from one frame, the first"));
  // A run has no picture for its captions.
  ModelRecipe recipe = read_recipe(path, options());
  recipe.text.encoder = path.string();
  const data::CaptionTokens tokens = caption_tokens(recipe).value();
  EXPECT_THAT(refusal([&] { check_text_encoder(recipe, tokens); }),
              HasSubstr("reads a picture with each caption"));
  const auto encoder = pipelines::open_text_encoder(path, {});
  EXPECT_THAT(refusal([&] {
                models::TextTokens texts;
                texts.ids.resize(400, 1);
                texts.lengths = {400};
                (void)encoder->encode(texts);
              }),
              HasSubstr("none was shown"));
  encoder->show(at::zeros({3, 336, 336}, at::kFloat));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         models::TextTokens texts;
                         texts.ids.resize(400, 1);
                         texts.lengths = {400};
                         (void)encoder->encode(texts);
                       }),
              AllOf(HasSubstr("must have one token 515 of a picture"), HasSubstr("got 0")));
  // Parts of other pipelines.
  const fs::path changed = whole(kClean);
  const auto misread = [&] { return refusal([&] { (void)read_recipe(changed, options()); }); };
  change(changed / "transformer/config.json", {{"image_condition_type", "other"}});
  EXPECT_THAT(misread(), HasSubstr("must be token_replace, latent_concat or null"));
  change(changed / "transformer/config.json", {{"image_condition_type", json()}});
  EXPECT_THAT(misread(), HasSubstr("is not shown given frames"));
  change(changed / "transformer/config.json", {{"image_condition_type", "latent_concat"}});
  EXPECT_THAT(misread(), HasSubstr("in_channels must be odd"));
}

}  // namespace hunyuan_video_i2v_test
}  // namespace kinora::inference
