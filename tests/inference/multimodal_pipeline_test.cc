// Flux and Stable Diffusion 3 from words: tiny pipelines that diffusers wrote, and what it draws
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

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/original_names.h"
#include "kinora/pipelines/diffusers_model.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace multimodal_pipeline_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class MultimodalPipelineTest : public testing::TestWithParam<const char*> {
 protected:
  MultimodalPipelineTest() { fs::create_directories(scratch_); }
  ~MultimodalPipelineTest() override { fs::remove_all(scratch_); }

  static fs::path folder() { return source_path("tests/inference/data") / GetParam(); }
  static bool is_flux() { return std::string(GetParam()) == "flux"; }
  static WeightsFile drawn() { return WeightsFile::open(folder() / "drawn.safetensors"); }
  static LoadOptions options() {
    return {.device = DeviceChoice::kCpu,
            .overrides = {"model.height=8", "model.width=8"},
            .says = false};
  }
  static Prompts prompts(const fs::path& path = folder()) {
    return prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(drawn().metadata("prompts")).get<std::vector<std::string>>(),
        read_recipe(path, options()), {.negative = drawn().metadata("negative"), .says = false});
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
  fs::path scratch_ = fs::path(testing::TempDir()) / ("multimodal-" + std::to_string(::getpid()));
};

INSTANTIATE_TEST_SUITE_P(Pipelines, MultimodalPipelineTest, testing::Values("flux", "sd3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(MultimodalPipelineTest, StatesAndVectorsAreThoseOfDiffusers) {
  const Prompts ours = prompts();
  const WeightsFile expected = drawn();
  EXPECT_EQ(ours.shape.length, is_flux() ? 512 : 333);
  const at::Tensor states =
      expected.read("states").view({-1, ours.shape.length, ours.shape.channels});
  const at::Tensor pooled = expected.read("pooled");
  std::vector<data::Text> texts;
  for (const Prompt& prompt : ours.all) {
    texts.push_back(prompt.text);
  }
  texts.push_back(ours.negative.value());
  ASSERT_EQ(std::ssize(texts), states.size(0));
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    const data::Text& text = texts[static_cast<size_t>(i)];
    EXPECT_EQ(text.length, ours.shape.length);  // padding is read
    EXPECT_LT(distance(at::tensor(text.tokens).view_as(states[i]), states[i]), 5e-6) << i;
    EXPECT_LT(distance(at::tensor(text.pooled), pooled[i]), 5e-6) << i;
  }
}

TEST_P(MultimodalPipelineTest, PicturesAreThoseOfDiffusers) {
  const WeightsFile expected = drawn();
  TrainedModel trained = load_trained(folder(), options());
  EXPECT_EQ(trained.recipe.sample.sampling.steps, 28);
  EXPECT_EQ(trained.recipe.sample.sampling.guidance, is_flux() ? 1.0 : 7.0);
  EXPECT_EQ(trained.recipe.model.transformer.guidance, is_flux() ? 3.5 : 0.0);
  const auto encoded = std::make_shared<Prompts>(prompts());
  const uint64_t seed = std::stoull(expected.metadata("seed"));
  const at::Tensor latents =
      Drawing(trained, {{.encoded = encoded, .seed = seed}}, {.steps = 4}).draw();
  EXPECT_LT(distance(latents, expected.read("latents")), 1e-4);
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  expect_pictures(*decoder, latents, expected.read("pictures"));

  auto others = std::make_shared<Prompts>(*encoded);
  std::swap(others->all[0], others->all[1]);
  EXPECT_GT(distance(Drawing(trained, {{.encoded = others, .seed = seed}}, {.steps = 4}).draw(),
                     expected.read("latents")),
            1e-2);
}

// One file with the authors' keys, as other programs write it: behind a prefix, beside other parts.
TEST_P(MultimodalPipelineTest, AuthorsFilesAreReadToo) {
  const auto ours = pipelines::open_weights(folder() / "transformer", false);
  const models::ModelConfig model = load_trained(folder(), options()).recipe.model;
  checkpoint::LateTensors tensors = ours.tensors();
  checkpoint::LateTensors one;
  for (auto& [key, tensor] :
       checkpoint::take_renamed(tensors, models::family_of(model).original_naming(model))) {
    one.emplace(models::kModelPrefix + key, tensor);
  }
  EXPECT_TRUE(tensors.empty()) << tensors.begin()->first;
  one.emplace("first_stage_model.beside", checkpoint::late_tensor(at::tensor({1.0F})));
  checkpoint::write_weights(scratch() / "one.safetensors", one, {});
  const auto read = pipelines::open_weights(scratch() / "one.safetensors", false);
  EXPECT_EQ(read.names(), ours.names());
  for (const std::string& name : ours.names()) {
    EXPECT_TRUE(read.read(name).equal(ours.read(name))) << name;
  }
}

TEST_P(MultimodalPipelineTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [this](const fs::path& file, const json& changes) {
    const fs::path path = changed(file, changes);
    return error_of(ErrorKind::kConfig, [&] { return prompts(path); });
  };
  EXPECT_THAT(refusal("text_encoder/config.json", {{"model_type", "t5"}, {"d_model", 16}}),
              HasSubstr("must be a CLIP"));
  const std::string t5 = is_flux() ? "text_encoder_2" : "text_encoder_3";
  EXPECT_THAT(refusal(t5 + "/config.json", {{"d_model", 40}}),
              AllOf(HasSubstr("states of 40 channels"), HasSubstr("takes")));
  if (!is_flux()) {
    EXPECT_THAT(refusal(t5 + "/config.json", {{"d_model", 24}}),
                HasSubstr("states of the CLIPs must not be wider than T5's 24, got 28"));
  }
  EXPECT_THAT(refusal("transformer/config.json", {{"pooled_projection_dim", 9}}),
              HasSubstr("numbers, but "));
  EXPECT_THAT(refusal("text_encoder/config.json", {{"vocab_size", 500}}),
              HasSubstr("has a vocabulary of 500"));
  if (is_flux()) {
    EXPECT_THAT(refusal("transformer/config.json", {{"in_channels", 18}}),
                HasSubstr("must be those of patches of 2 x 2, got 18"));
    EXPECT_THAT(refusal("scheduler/scheduler_config.json", {{"invert_sigmas", true}}),
                HasSubstr("invert_sigmas must be false"));
  } else {
    EXPECT_THAT(refusal("transformer/config.json", {{"caption_projection_dim", 24}}),
                HasSubstr("caption_projection_dim must be 16"));
  }
}

TEST_P(MultimodalPipelineTest, SchnellHasFewerStepsAndTokens) {
  if (!is_flux()) {
    return;
  }
  const fs::path path = changed("transformer/config.json", {{"guidance_embeds", false}});
  const ModelRecipe recipe = read_recipe(path, options());
  EXPECT_EQ(recipe.sample.sampling.steps, 4);
  EXPECT_EQ(recipe.model.text_tokens, 256);
  EXPECT_EQ(recipe.model.transformer.guidance, 0.0);
}

}  // namespace multimodal_pipeline_test
}  // namespace kinora::inference
