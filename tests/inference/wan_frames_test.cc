// Wan from a first frame, from a first and a last one, and with two experts: tiny pipelines that
// diffusers wrote, and what it draws with them (tools/reference/make_pipeline_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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
#include "kinora/inference/drawing_key.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/pipeline.h"
#include "tests/error_of.h"
#include "tests/inference/drawn_pictures.h"
#include "tests/inference/drawn_states.h"
#include "tests/places.h"

namespace kinora::inference {
namespace wan_frames_test {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class WanFramesTest : public testing::Test {
 protected:
  WanFramesTest() { fs::create_directories(scratch_); }
  ~WanFramesTest() override { fs::remove_all(scratch_); }

  /// The pipeline of a folder that holds what is different of wan/.
  [[nodiscard]] fs::path whole(const std::string& name) const {
    const fs::path data = source_path("tests/inference/data");
    const fs::path path = scratch_ / name;
    fs::copy(data / "wan", path, fs::copy_options::recursive);
    fs::remove_all(path / "transformer");
    if (fs::exists(data / name / "vae")) {
      fs::remove_all(path / "vae");
    }
    fs::copy(data / name, path, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    return path;
  }
  static LoadOptions options(const std::vector<std::string>& more = {}) {
    LoadOptions options{.device = DeviceChoice::kCpu,
                        .overrides = {"model.frames=3", "model.height=4", "model.width=6"},
                        .says = false};
    options.overrides.insert(options.overrides.end(), more.begin(), more.end());
    return options;
  }
  /// The frames that it has pictures of.
  static std::vector<EndFrames> ends(const fs::path& path, const models::ModelConfig& model) {
    const fs::path last = path / "last.png";
    return read_end_frames({(path / "first.png").string()}, fs::exists(last) ? last.string() : "",
                           model);
  }
  /// Draws it with diffusers' noise and compares latents, and pictures of "latents", with its.
  static void expect_as_diffusers(const fs::path& path, double guidance,
                                  const std::string& latents_name = "latents") {
    const WeightsFile expected = WeightsFile::open(path / "drawn.safetensors");
    const LoadOptions how =
        options({"sample.low_noise_guidance=" + expected.metadata("guidance_2")});
    TrainedModel trained = load_trained(path, how);
    const ModelRecipe& recipe = trained.recipe;
    const auto encoded = std::make_shared<const Prompts>(prompts_of_pipeline(
        pipelines::find_pipeline(path).value(),
        json::parse(expected.metadata("prompts")).get<std::vector<std::string>>(), recipe,
        {.negative = expected.metadata("negative"), .says = false}));
    const auto decoder = open_decoder(recipe, {}, at::kCPU);
    const models::ModelShape shape = models::shape_of(recipe.model);
    DrawOptions draws{.steps = 4, .encoder = decoder.get()};
    if (shape.channels_beside == 0 && recipe.frame_masks.any() && latents_name == "latents") {
      draws.given = {(path / "first.png").string()};
    }
    Drawing drawing(trained,
                    {{.encoded = encoded,
                      .seed = std::stoull(expected.metadata("seed")),
                      .guidance = guidance}},
                    draws);
    if (shape.channels_beside > 0) {
      const std::vector<EndFrames> frames = ends(path, recipe.model);
      DrawStart start{.beside = shown_frames(frames, recipe.model, decoder.get(), at::kCPU)};
      if (shape.reads_image_prompt) {
        start.image_prompts.given =
            FrameStates(recipe.image.encoder, recipe.model, at::kCPU).of_clip(frames.front());
        EXPECT_LT(distance(start.image_prompts.given, expected.read("image_states")), 1e-5);
      }
      drawing.set_start(start);
    }
    const at::Tensor latents = drawing.draw();
    EXPECT_LT(distance(latents, expected.read(latents_name)), 1e-4);
    if (latents_name != "latents") {
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
  fs::path scratch_ = fs::path(testing::TempDir()) / ("wan-frames-" + std::to_string(::getpid()));
};

TEST_F(WanFramesTest, AFirstFrameGoesOnAsDiffusersLetsIt) {
  expect_as_diffusers(whole("wan_i2v"), 5.0);
}

TEST_F(WanFramesTest, BetweenAFirstAndALastFrameItFillsInAsDiffusersDoes) {
  expect_as_diffusers(whole("wan_flf"), 5.0);
}

TEST_F(WanFramesTest, TwoExpertsDrawAsThoseOfDiffusers) {
  expect_as_diffusers(whole("wan_t2v_experts"), 4.0);
}

// As often as it is drawn, by batches and from one drawing to the next.
TEST_F(WanFramesTest, ExchangedExpertsDrawWhatBothDraw) {
  using Set = optim::WeightExchange::Set;
  const fs::path path = whole("wan_t2v_experts");
  const auto encoded = std::make_shared<const Prompts>(
      prompts_of_pipeline(pipelines::find_pipeline(path).value(), {"a red circle", "a square"},
                          read_recipe(path, options()), {.says = false}));
  const Request request{.encoded = encoded, .seed = 5, .guidance = 4.0};
  const DrawOptions draws{.batch = 1, .steps = 4};
  const std::vector<std::string> caches = {"sample.cache=first_block",
                                           "sample.cache_threshold=0.5"};
  for (const auto& [held, overrides] :
       std::vector<std::pair<optim::HeldOptions, std::vector<std::string>>>{
           {{}, {}},
           {{}, caches},
           {{.offload = 0.5}, {}},
           {{.format = kernels::WeightFormat::kFp8}, {"sample.low_noise_guidance=2.5"}}}) {
    SCOPED_TRACE(overrides.empty() ? "" : overrides.front());
    LoadOptions how = options(overrides);
    how.held = held;
    TrainedModel both = load_trained(path, how);
    how.exchange_experts = true;
    TrainedModel exchanged = load_trained(path, how);
    ASSERT_NE(exchanged.experts, nullptr);
    EXPECT_EQ(exchanged.low_noise, nullptr);
    EXPECT_EQ(exchanged.experts->there(), Set::kFirst);
    Drawing of_both(both, {request}, draws);
    Drawing drawing(exchanged, {request}, draws);
    const at::Tensor expected = of_both.draw();
    EXPECT_GT(distance(expected[0], expected[1]), 0.1);
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_TRUE(drawing.draw().equal(expected)) << turn;
      EXPECT_EQ(exchanged.experts->there(), Set::kSecond);
    }
    EXPECT_EQ(drawing_key(exchanged, drawing, request, draws),
              drawing_key(both, of_both, request, draws));
    EXPECT_EQ(exchanged.experts->there(), Set::kFirst);
    EXPECT_TRUE(Drawing(exchanged, {request}, draws).draw().equal(expected));
  }
}

TEST_F(WanFramesTest, TwoExpertsFillInAsThoseOfDiffusers) {
  expect_as_diffusers(whole("wan_i2v_experts"), 4.0);
}

// 2.2's TI2V: each token has a time of its own, and that of the given frame is 0.
TEST_F(WanFramesTest, AGivenFrameAndWordsAloneAreDrawnAsByDiffusers) {
  const fs::path path = whole("wan_ti2v");
  const ModelRecipe recipe = read_recipe(path, {.device = DeviceChoice::kCpu, .says = false});
  // 81 frames of 480 x 832 pixels.
  EXPECT_EQ(recipe.model.sample_shape(), (std::vector<int64_t>{4, 21, 30, 52}));
  EXPECT_EQ(recipe.model.compression, 16);
  expect_as_diffusers(path, 5.0);
  expect_as_diffusers(path, 5.0, "latents.text");
}

TEST_F(WanFramesTest, ConvertsToAFileAndBack) {
  const fs::path folder = whole("wan_flf");
  const fs::path file = scratch() / "own.safetensors";
  (void)convert_weights({.from = folder, .to = file});
  const fs::path back = scratch() / "back";
  (void)convert_weights({.from = file, .to = back});
  expect_tensors_of(folder / "transformer", back / "transformer");
  std::ifstream ours(back / "transformer/config.json");
  std::ifstream theirs(folder / "transformer/config.json");
  const json described = json::parse(ours);
  const json published = json::parse(theirs);
  for (const char* key : {"in_channels", "out_channels", "image_dim", "added_kv_proj_dim",
                          "pos_embed_seq_len", "num_layers", "ffn_dim"}) {
    EXPECT_EQ(described[key], published[key]) << key;
  }
}

TEST_F(WanFramesTest, FramesThatAModelDoesNotReadAreRefused) {
  const fs::path folder = whole("wan_i2v");
  const std::string first = (folder / "first.png").string();
  const std::string text = (folder / "model_index.json").string();
  const models::ModelConfig of_first = read_recipe(folder, options()).model;
  const auto refusal = [](ErrorKind kind, const std::vector<std::string>& ones,
                          const std::string& two, const models::ModelConfig& model) {
    return error_of(kind, [&] { (void)read_end_frames(ones, two, model); });
  };
  EXPECT_THAT(refusal(ErrorKind::kConfig, {}, "", of_first), HasSubstr("--image FILE"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {first}, first, of_first),
              HasSubstr("says of one frame, the first. Hint: no --last"));
  EXPECT_THAT(refusal(ErrorKind::kIo, {first, first + "x"}, "", of_first),
              HasSubstr("does not exist"));
  EXPECT_THAT(refusal(ErrorKind::kIo, {text}, "", of_first), HasSubstr("model_index.json"));
  const fs::path both = whole("wan_flf");
  const models::ModelConfig of_both = read_recipe(both, options()).model;
  EXPECT_THAT(refusal(ErrorKind::kConfig, {first}, "", of_both), HasSubstr("--last FILE"));
  const models::ModelConfig still = read_recipe(both, options({"model.frames=1"})).model;
  EXPECT_THAT(refusal(ErrorKind::kConfig, {first}, first, still),
              HasSubstr("a clip of one frame has no last one"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         (void)shown_frames(read_end_frames({first}, "", of_first), of_first,
                                            nullptr, at::kCPU);
                       }),
              HasSubstr("given frames want an autoencoder"));
  // What draws wants them, too.
  TrainedModel trained = load_trained(folder, options());
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         Request request;
                         request.encoded = std::make_shared<const Prompts>(
                             prompts_of_pipeline(pipelines::find_pipeline(folder).value(), {"a"},
                                                 trained.recipe, {.says = false}));
                         (void)Drawing(trained, {request}, {.steps = 1}).draw();
                       }),
              HasSubstr("this model goes on from a first frame"));
}

TEST_F(WanFramesTest, AnotherImageEncoderIsRefused) {
  const fs::path folder = whole("wan_flf");
  const ModelRecipe recipe = read_recipe(folder, options());
  EXPECT_EQ(fs::path(recipe.image.encoder).filename(), "image_encoder");
  const auto refusal = [&](ErrorKind kind) {
    return error_of(kind, [&] { (void)FrameStates(recipe.image.encoder, recipe.model, at::kCPU); });
  };
  const fs::path config = folder / "image_encoder/config.json";
  change(config, {{"patch_size", 2}});
  EXPECT_THAT(refusal(ErrorKind::kConfig),
              HasSubstr("of two frames there are 34 states, but model.image_positions is 10"));
  change(config, {{"patch_size", 4}, {"hidden_size", 12}});
  EXPECT_THAT(refusal(ErrorKind::kConfig),
              HasSubstr("hidden_size must be 8, the model's image_channels, got 12"));
  change(config, {{"hidden_size", 8}});
  change(folder / "image_processor/preprocessor_config.json",
         {{"crop_size", {{"height", 6}, {"width", 6}}}});
  EXPECT_THAT(refusal(ErrorKind::kConfig),
              AllOf(HasSubstr("takes pictures of 8 pixels a side"), HasSubstr("crops 6")));
  fs::remove(config);
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("has no config.json"));
  fs::remove_all(folder / "image_encoder");
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { (void)read_recipe(folder, options()); }),
              HasSubstr("image_encoder"));
}

TEST_F(WanFramesTest, PartsOfAnotherPipelineAreRefused) {
  const fs::path folder = whole("wan_i2v_experts");
  const auto refusal = [&](ErrorKind kind, const std::vector<std::string>& more = {}) {
    return error_of(kind, [&] { (void)load_trained(folder, options(more)); });
  };
  EXPECT_THAT(refusal(ErrorKind::kConfig, {"sample.low_noise_model=\"\""}),
              HasSubstr("sample.low_noise and sample.low_noise_model must be given together"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {"sample.patches=2"}),
              HasSubstr("sample.patches is of one model, and this one has a second expert"));
  fs::remove_all(folder / "transformer_2");
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("transformer_2"));
  fs::copy(whole("wan_t2v_experts") / "transformer_2", folder / "transformer_2",
           fs::copy_options::recursive);
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("x_embedder.proj.weight"));
  change(folder / "model_index.json", {{"_class_name", "WanPipeline"}});
  EXPECT_THAT(refusal(ErrorKind::kConfig), HasSubstr("a WanPipeline shows none"));
  LoadOptions exchanged = options();
  exchanged.exchange_experts = true;
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { (void)load_trained(whole("wan_i2v"), exchanged); }),
      HasSubstr("no second expert to exchange with"));
}

}  // namespace wan_frames_test
}  // namespace kinora::inference
