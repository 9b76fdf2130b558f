// LTX-Video from words and from a first frame: a tiny pipeline that diffusers wrote, and what it
// draws with it (tools/reference/make_pipeline_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/inference/convert_weights.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/image.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/decode.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace ltx_pipeline_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class LtxPipelineTest : public testing::Test {
 protected:
  LtxPipelineTest() { fs::create_directories(scratch_); }
  ~LtxPipelineTest() override { fs::remove_all(scratch_); }

  static fs::path folder() { return source_path("tests/inference/data/ltx"); }
  static WeightsFile drawn() { return WeightsFile::open(folder() / "drawn.safetensors"); }
  static LoadOptions options(const std::vector<std::string>& more = {}) {
    LoadOptions options{.device = DeviceChoice::kCpu,
                        .overrides = {"model.frames=3", "model.height=2", "model.width=4"},
                        .says = false};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    return options;
  }
  static Prompts prompts(const fs::path& path = folder()) {
    return prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(drawn().metadata("prompts")).get<std::vector<std::string>>(),
        read_recipe(path, options()), {.negative = drawn().metadata("negative"), .says = false});
  }
  static Request request() {
    return {.encoded = std::make_shared<const Prompts>(prompts()),
            .seed = std::stoull(drawn().metadata("seed"))};
  }
  /// Pictures of latents by such a recipe's decoder are those of diffusers.
  static void expect_pictures(const ModelRecipe& recipe, const at::Tensor& latents,
                              const std::string& name) {
    const auto decoder = open_decoder(recipe, {}, at::kCPU);
    inference::expect_pictures(*decoder, latents, drawn().read(name),
                               "largest_difference_of_" + name);
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
  /// As the folders of 0.9.5 and later say.
  [[nodiscard]] fs::path condition_folder() const {
    const fs::path path =
        changed("model_index.json", json{{"_class_name", "LTXConditionPipeline"}});
    std::ofstream(path / "scheduler/scheduler_config.json")
        << json{{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"shift", 1.0}};
    return path;
  }
  static Request words(const fs::path& path) {
    return {.encoded = std::make_shared<const Prompts>(prompts(path)),
            .seed = std::stoull(drawn().metadata("seed"))};
  }
  /// A folder of ten frames in which first.png moves to the right.
  [[nodiscard]] std::string moving() const {
    const fs::path path = scratch() / "moving";
    fs::create_directories(path);
    const io::Image first = read_picture(folder() / "first.png");
    for (int64_t k = 0; k < 10; ++k) {
      const at::Tensor pixels = at::roll(pixels_of(first), 3 * k, 1);
      io::Image frame;
      io::set_size(frame, first.height, first.width);
      std::copy_n(pixels.const_data_ptr<uint8_t>(), frame.pixels.size(), frame.pixels.data());
      io::write_png(path / (std::to_string(k) + ".png"), frame);
    }
    return path.string();
  }
  [[nodiscard]] const fs::path& scratch() const { return scratch_; }

 private:
  fs::path scratch_ = fs::path(testing::TempDir()) / ("ltx-" + std::to_string(::getpid()));
};

// The text encoder reads the padding behind a text, the model does not.
TEST_F(LtxPipelineTest, StatesAreThoseOfDiffusers) {
  const Prompts ours = prompts();
  EXPECT_EQ(ours.shape.length, 128);
  expect_states(ours, drawn());
}

TEST_F(LtxPipelineTest, ClipsAreThoseOfDiffusers) {
  const ModelRecipe recipe = read_recipe(folder(), options());
  EXPECT_EQ(recipe.sample.sampling.steps, 50);
  EXPECT_EQ(recipe.sample.sampling.guidance, 3.0);
  EXPECT_EQ(recipe.sample.sampling.last_level, 0.1);
  EXPECT_EQ(recipe.objective.shift_tokens, (std::vector<int64_t>{1024, 4096}));
  EXPECT_EQ(clip_fps(recipe.data), 25.0);
  TrainedModel trained = load_trained(folder(), options());
  const at::Tensor latents = Drawing(trained, {request()}, {.steps = 4}).draw();
  EXPECT_LT(distance(latents, drawn().read("latents")), 1e-4);
  expect_pictures(recipe, latents, "pictures");
  expect_pictures(read_recipe(folder(), options({"autoencoder.decode_level=0.05",
                                                 "autoencoder.decode_noise=0.025"})),
                  latents.narrow(0, 0, 1), "pictures.told");
}

TEST_F(LtxPipelineTest, AFirstFrameGoesOnAsDiffusersLetsIt) {
  const fs::path path =
      changed("model_index.json", json{{"_class_name", "LTXImageToVideoPipeline"}});
  TrainedModel trained = load_trained(path, options());
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  DrawOptions draws{.steps = 4, .encoder = decoder.get()};
  draws.given = {(path / "first.png").string()};
  draws.fps = 30.0;
  const at::Tensor latents = Drawing(trained, {request()}, draws).draw();
  EXPECT_LT(distance(latents, drawn().read("latents.given")), 1e-4);
  expect_pictures(trained.recipe, latents, "pictures.given");
}

// Texts are up to 256 tokens.
TEST_F(LtxPipelineTest, ConditionsAreThoseOfDiffusers) {
  const fs::path path = condition_folder();
  TrainedModel trained = load_trained(path, options());
  EXPECT_EQ(trained.recipe.sample.sampling.sigmas, diffusion::SigmaSpacing::kLinearQuadratic);
  const Request asked = words(path);
  EXPECT_EQ(asked.encoded->shape.length, 256);
  const at::Tensor latents = Drawing(trained, {asked}, {.steps = 5}).draw();
  EXPECT_LT(distance(latents, drawn().read("latents.condition")), 1e-4);

  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  DrawOptions draws{.steps = 5, .encoder = decoder.get()};
  draws.given = {(path / "first.png").string()};
  draws.fps = 30.0;
  EXPECT_EQ(trained.recipe.sample.sampling.given_noise, 0.15);
  const at::Tensor noised = Drawing(trained, {asked}, draws).draw();
  // diffusers leaves the last step's noise on the given frame.
  const auto behind_first = [](const at::Tensor& clips) {
    return clips.narrow(2, 1, clips.size(2) - 1);
  };
  EXPECT_LT(distance(behind_first(noised), behind_first(drawn().read("latents.condition_noised"))),
            1e-4);
  trained.recipe.sample.sampling.given_noise = 0.0;
  const at::Tensor given = Drawing(trained, {asked}, draws).draw();
  EXPECT_LT(distance(given, drawn().read("latents.condition_given")), 1e-4);
  EXPECT_TRUE(noised.select(2, 0).equal(given.select(2, 0))) << "it ends as it was given";
}

// A picture at the start and one at the end, given in part, and a clip between them, of which two
// latents are tokens of their own and the third stands in the clip that is drawn.
TEST_F(LtxPipelineTest, FramesAtOtherPlacesAreThoseOfDiffusers) {
  const fs::path path = condition_folder();
  TrainedModel trained = load_trained(path, options({"model.frames=5"}));
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  const Request asked = words(path);
  const std::string first = (path / "first.png").string();
  DrawOptions draws{.steps = 5, .encoder = decoder.get()};
  draws.at = {{.frame = 0, .path = first, .strength = 0.3},
              {.frame = 5, .path = moving()},
              {.frame = 16, .path = first, .strength = 0.1}};
  const at::Tensor noised = Drawing(trained, {asked}, draws).draw();
  // diffusers leaves the last step's noise on the given frame.
  const at::Tensor drawn_places = at::tensor({0, 1, 2, 4});
  EXPECT_LT(distance(noised.index_select(2, drawn_places),
                     drawn().read("latents.placed_noised").index_select(2, drawn_places)),
            1e-4);
  trained.recipe.sample.sampling.given_noise = 0.0;
  const at::Tensor latents = Drawing(trained, {asked}, draws).draw();
  EXPECT_LT(distance(latents, drawn().read("latents.placed")), 1e-4);
  EXPECT_TRUE(noised.select(2, 3).equal(latents.select(2, 3))) << "it ends as it was given";
  const at::Tensor pictures =
      (pipelines::decode_latents(*decoder, latents.narrow(0, 0, 1), at::kCPU, false) / 2 + 0.5)
          .clamp(0.0, 1.0)
          .index_select(2, at::arange(0, 17, 4));
  EXPECT_LT((pictures - drawn().read("pictures.placed").to(at::kFloat)).abs().max().item<double>(),
            1.0 / 255.0);

  // No step of five reaches the level 0.05: it ends as it was given, not with noise of that level.
  draws.at = {{.frame = 0, .path = first}};
  const at::Tensor whole = Drawing(trained, {asked}, draws).draw();
  draws.at[0].strength = 0.95;
  const at::Tensor in_part = Drawing(trained, {asked}, draws).draw();
  EXPECT_TRUE(whole.select(2, 0).equal(in_part.select(2, 0)));
  EXPECT_GT(distance(in_part, whole), 1e-3) << "but it was shown with noise";
}

TEST_F(LtxPipelineTest, TheLastFrameIsAtItsPlaceAndClipsGoOnFromLatents) {
  const fs::path path = condition_folder();
  TrainedModel trained = load_trained(path, options({"model.frames=5"}));
  trained.recipe.sample.sampling.given_noise = 0.0;
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  const Request asked = words(path);
  const std::string first = (path / "first.png").string();
  DrawOptions draws{.steps = 5, .encoder = decoder.get()};
  draws.at = {{.frame = 16, .path = first}};
  const at::Tensor at_end = Drawing(trained, {asked}, draws).draw();
  draws.at = {};
  draws.last = first;
  EXPECT_TRUE(Drawing(trained, {asked}, draws).draw().equal(at_end));
  EXPECT_GT(distance(Drawing(trained, {asked}, {.steps = 5}).draw(), at_end), 1e-3);
  // Of a video its last nine frames, from frame 8 on: its third latent is the last.
  draws.last = moving();
  draws.video_frames = 9;
  const at::Tensor ends = Drawing(trained, {asked}, draws).draw();
  draws.last = {};
  draws.at = {{.frame = 8, .path = moving()}};
  EXPECT_FALSE(Drawing(trained, {asked}, draws).draw().equal(ends)) << "its first nine";
  fs::remove(fs::path(draws.at[0].path) / "0.png");
  EXPECT_TRUE(Drawing(trained, {asked}, draws).draw().equal(ends));

  draws.at = {{.frame = 8, .path = first}};
  Drawing again(trained, {asked}, draws);
  again.set_start({.data = drawn().read("clip"), .strength = 0.6});
  EXPECT_LT(distance(again.draw().narrow(0, 0, 1), drawn().read("latents.placed_strength")), 1e-4);
}

TEST_F(LtxPipelineTest, PlacesThatAreNotThereAreRefused) {
  const fs::path path = condition_folder();
  TrainedModel trained = load_trained(path, options());
  const auto decoder = open_decoder(trained.recipe, {}, at::kCPU);
  const Request asked = words(path);
  const std::string first = (path / "first.png").string();
  const auto refusal = [&](const std::vector<PlacedFrames>& at, int64_t pieces = 1,
                           double given_edit = 0.0) {
    DrawOptions draws{.steps = 2, .encoder = decoder.get()};
    draws.at = at;
    draws.given_edit = given_edit;
    draws.pieces = pieces;
    draws.overlap = 1;
    return error_of(ErrorKind::kConfig, [&] { return Drawing(trained, {asked}, draws).draw(); });
  };
  EXPECT_THAT(refusal({{.frame = 9, .path = first}}),
              AllOf(HasSubstr("of a clip of 9 frames"), HasSubstr("none is frame 9")));
  EXPECT_THAT(refusal({{.frame = 8, .path = first, .strength = 1.5}}),
              HasSubstr("must lie in 0 to 1, got 1.5"));
  EXPECT_THAT(refusal({{.frame = 0, .path = first}, {.frame = 0, .path = first}}),
              HasSubstr("given once"));
  EXPECT_THAT(refusal({{.frame = 8, .path = first}}, 2), HasSubstr("Hint: no --loop"));
  EXPECT_THAT(refusal({{.frame = 8, .path = first}}, 1, 0.5), HasSubstr("Hint: no --given-edit"));
  DrawOptions draws{.steps = 2, .encoder = decoder.get()};
  draws.at = {{.frame = 8, .path = first}};
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         Drawing drawing(trained, {asked}, draws);
                         drawing.set_start({.noise = drawn().read("noise")});
                         return drawing.draw();
                       }),
              HasSubstr("Hint: no --noise"));
  draws.at[0].strength = 0.5;
  trained.recipe.sample.sampling.method = pipelines::SamplingConfig::Method::kDpm;
  trained.recipe.sample.sampling.given_noise = 0.0;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return Drawing(trained, {asked}, draws).draw(); }),
              HasSubstr("given in part need a flow"));
  TrainedModel older = load_trained(folder(), options());
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return Drawing(older, {request()}, draws).draw(); }),
      HasSubstr("model.single_first_frame"));
}

TEST_F(LtxPipelineTest, SizesAreThosePublished) {
  const ModelRecipe recipe = read_recipe(folder(), {.device = DeviceChoice::kCpu, .says = false});
  // 161 frames of 512 x 704 pixels, of an autoencoder of 4 x 16 x 16.
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{4, 41, 32, 44}));
  EXPECT_EQ(recipe.model.compression, 16);
  EXPECT_EQ(recipe.model.frame_compression, 4);
}

TEST_F(LtxPipelineTest, ConvertsToAFileAndBack) {
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
    if (key != "_diffusers_version") {
      EXPECT_EQ(described.value(key, json()), value) << key;
    }
  }
}

TEST_F(LtxPipelineTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [this](const fs::path& file, const json& changes) {
    const fs::path path = changed(file, changes);
    return error_of(ErrorKind::kConfig, [&] { return prompts(path); });
  };
  EXPECT_THAT(refusal("text_encoder/config.json", {{"d_model", 40}}),
              AllOf(HasSubstr("states of 40 channels"), HasSubstr("takes 16")));
  EXPECT_THAT(refusal("transformer/config.json", {{"qk_norm", "rms_norm"}}),
              HasSubstr("qk_norm must be \"rms_norm_across_heads\", got \"rms_norm\""));
  EXPECT_THAT(refusal("transformer/config.json", {{"patch_size", 2}}),
              HasSubstr("patch_size must be 1, got 2"));
  EXPECT_THAT(refusal("transformer/config.json", {{"cross_attention_dim", 64}}),
              HasSubstr("cross_attention_dim must be 28, got 64"));
  EXPECT_THAT(refusal("vae/config.json", {{"patch_size_t", 2}}),
              HasSubstr("patch_size_t must be 1 in config.json, got 2"));
  EXPECT_THAT(
      refusal("vae/config.json",
              {{"down_block_types", {"LTXVideoDownBlock3D", "LTXVideo095DownBlock3D"}}}),
      HasSubstr("down_block_types must be all LTXVideoDownBlock3D or all LTXVideo095DownBlock3D"));
  EXPECT_THAT(refusal("scheduler/scheduler_config.json", {{"time_shift_type", "linear"}}),
              HasSubstr("time_shift_type must be \"exponential\""));
}

}  // namespace ltx_pipeline_test
}  // namespace kinora::inference
