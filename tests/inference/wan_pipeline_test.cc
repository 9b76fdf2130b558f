// Wan from words: a tiny pipeline that diffusers wrote, and what it draws with it
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
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/pipelines/diffusers_model.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace wan_pipeline_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class WanPipelineTest : public testing::Test {
 protected:
  WanPipelineTest() { fs::create_directories(scratch_); }
  ~WanPipelineTest() override { fs::remove_all(scratch_); }

  static fs::path folder() { return source_path("tests/inference/data/wan"); }
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
  /// What the pipeline there draws with diffusers' noise.
  static at::Tensor latents(const fs::path& path, const std::shared_ptr<const Prompts>& encoded) {
    TrainedModel trained = load_trained(path, options());
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
  fs::path scratch_ = fs::path(testing::TempDir()) / ("wan-" + std::to_string(::getpid()));
};

TEST_F(WanPipelineTest, StatesAreThoseOfDiffusers) {
  const Prompts ours = prompts();
  EXPECT_EQ(ours.shape.length, 512);
  expect_states(ours, drawn());
}

TEST_F(WanPipelineTest, ClipsAreThoseOfDiffusers) {
  const WeightsFile expected = drawn();
  const ModelRecipe recipe = read_recipe(folder(), options());
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 5.0);
  EXPECT_EQ(clip_fps(recipe.data), 16.0);
  const auto encoded = std::make_shared<const Prompts>(prompts());
  const at::Tensor ours = latents(folder(), encoded);
  EXPECT_LT(distance(ours, expected.read("latents")), 1e-4);
  const auto decoder = open_decoder(recipe, {}, at::kCPU);
  expect_pictures(*decoder, ours, expected.read("pictures"));
}

TEST_F(WanPipelineTest, ClipsFromClipsAreThoseOfDiffusers) {
  const WeightsFile expected = drawn();
  TrainedModel trained = load_trained(folder(), options());
  Drawing drawing(trained,
                  {{.encoded = std::make_shared<const Prompts>(prompts()),
                    .seed = std::stoull(expected.metadata("seed"))}},
                  {.steps = 6});
  drawing.set_start({.data = expected.read("data"), .strength = 0.6});
  EXPECT_LT(distance(drawing.draw(), expected.read("latents.strength")), 1e-4);
}

TEST_F(WanPipelineTest, TheOtherSchedulerIsReadToo) {
  const fs::path path =
      changed("scheduler/scheduler_config.json", json::parse(drawn().metadata("latents.euler")));
  EXPECT_LT(distance(latents(path, std::make_shared<const Prompts>(prompts())),
                     drawn().read("latents.euler")),
            1e-4);
}

TEST_F(WanPipelineTest, SizesAreThosePublished) {
  const ModelRecipe recipe = read_recipe(folder(), {.device = DeviceChoice::kCpu, .says = false});
  // 81 frames of 480 x 832 pixels.
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{4, 21, 60, 104}));
  EXPECT_EQ(recipe.model.compression, 8);
}

TEST_F(WanPipelineTest, ConvertsToAFileAndBack) {
  const fs::path file = scratch() / "own.safetensors";
  (void)convert_weights({.from = folder(), .to = file});
  const fs::path back = scratch() / "back";
  (void)convert_weights({.from = file, .to = back});
  const auto first = WeightsFile::open(folder() / "transformer");
  const auto second = WeightsFile::open(back / "transformer");
  EXPECT_EQ(second.names().size(), first.names().size() + 1);  // what null captions are read as
  expect_tensors_of(folder() / "transformer", back / "transformer");
  std::ifstream ours(back / "transformer/config.json");
  std::ifstream theirs(folder() / "transformer/config.json");
  const json described = json::parse(ours);
  const json published = json::parse(theirs);
  for (const auto& [key, value] : published.items()) {
    if (described.contains(key) && key != "_diffusers_version") {
      EXPECT_EQ(described[key], value) << key;
    }
  }
}

TEST_F(WanPipelineTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [this](const fs::path& file, const json& changes) {
    const fs::path path = changed(file, changes);
    return error_of(ErrorKind::kConfig, [&] { return prompts(path); });
  };
  EXPECT_THAT(refusal("text_encoder/config.json", {{"d_model", 40}}),
              AllOf(HasSubstr("states of 40 channels"), HasSubstr("takes 16")));
  EXPECT_THAT(refusal("transformer/config.json", {{"image_dim", 1280}}),
              HasSubstr("image_dim must come with in_channels of image to video"));
  EXPECT_THAT(refusal("transformer/config.json", {{"in_channels", 36}}),
              HasSubstr("twice as many and 4, got 36 and 4"));
  EXPECT_THAT(refusal("transformer/config.json", {{"in_channels", 12}}),
              AllOf(HasSubstr("is a model that is shown given frames"),
                    HasSubstr("a WanPipeline shows none")));
  EXPECT_THAT(refusal("model_index.json", {{"boundary_ratio", 1.5}}),
              HasSubstr("boundary_ratio must lie in 0 to 1, got 1.5"));
  EXPECT_THAT(refusal("scheduler/scheduler_config.json", {{"use_karras_sigmas", true}}),
              HasSubstr("use_karras_sigmas must be false"));
  EXPECT_THAT(
      refusal("scheduler/scheduler_config.json", {{"_class_name", "DPMSolverMultistepScheduler"}}),
      HasSubstr("FlowMatchEulerDiscreteScheduler or a UniPCMultistepScheduler"));
  EXPECT_THAT(
      refusal("vae/config.json", {{"patch_size", 2}}),
      HasSubstr("in_channels must be 12 in config.json, the values of a patch of patch_size, "
                "got 3"));
}

}  // namespace wan_pipeline_test
}  // namespace kinora::inference
