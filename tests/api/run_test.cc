// The facade, kinora/kinora.h. install_test.py runs README's lines of it.

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kinora/inference/trained_model.h"
#include "kinora/kinora.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora {
namespace run_test {

using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kDemo = source_path("configs/demo.yaml");
const std::vector<std::string> kSmall = {"model.depth=1", "train.steps=2", "train.global_batch=2",
                                         "train.device=cpu", "sample.steps=2"};

/// One run for all tests, of two steps.
class RunTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder() = testing::TempDir() + "kinora-api";
    fs::remove_all(folder());
    std::vector<std::string> overrides = kSmall;
    overrides.insert(overrides.end(), {"run.dir=" + folder().string(), "checkpoint.export=true"});
    result() = train_recipe(kDemo, overrides);
  }
  static void TearDownTestSuite() { fs::remove_all(folder()); }

  static fs::path& folder() {
    static fs::path folder;
    return folder;
  }
  static FinishedRun& result() {
    static FinishedRun result;
    return result;
  }
  static Model loaded() { return load(folder(), {.device = "cpu"}); }
};

TEST_F(RunTest, RunEndsWithWhatTheRecipeAsksFor) {
  EXPECT_EQ(result().folder, folder());
  EXPECT_EQ(result().steps, 2);
  EXPECT_GT(result().last_loss, 0.0);
  EXPECT_TRUE(fs::exists(folder() / "checkpoints"));
}

TEST_F(RunTest, RunGoesOnWhereResumeSaysSo) {
  std::vector<std::string> overrides = kSmall;
  overrides.insert(overrides.end(), {"run.dir=" + folder().string(), "train.steps=3"});
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)train_recipe(kDemo, overrides); }),
              HasSubstr("resume"));
  EXPECT_EQ(train_recipe(kDemo, overrides, "auto").steps, 3);
}

TEST_F(RunTest, ImagesAreThoseOfTheTensor) {
  Model model = loaded();
  const DrawOptions options{.classes = {0, 5}, .count = 3, .seed = 7};
  const std::vector<io::Image> images = draw(model, options);
  const at::Tensor pixels = draw_tensor(model, options);
  ASSERT_EQ(images.size(), 3U);
  EXPECT_EQ(images.front().width, 32);
  EXPECT_EQ(pixels.sizes(), (std::vector<int64_t>{3, 3, 32, 32}));
  const io::Image grid = io::make_grid(images);
  EXPECT_GE(grid.width, 64);
}

TEST_F(RunTest, DrawTakesAllClassesWhereNoneAreGiven) {
  Model model = loaded();
  EXPECT_EQ(draw_tensor(model, {.steps = 1}).size(0), 16);
}

TEST_F(RunTest, SampleIsTheSameInAnyBatch) {
  Model model = loaded();
  const at::Tensor whole = draw_tensor(model, {.classes = {1, 2}, .count = 4, .seed = 3});
  const at::Tensor single =
      draw_tensor(model, {.classes = {1, 2}, .count = 4, .seed = 3, .batch = 1});
  EXPECT_TRUE(whole.allclose(single, 0.0, 1e-4));
}

TEST_F(RunTest, GuidanceAndStepsAreOfOneCallOnly) {
  Model model = loaded();
  const at::Tensor plain = draw_tensor(model, {.classes = {1}});
  const at::Tensor guided = draw_tensor(model, {.classes = {1}, .steps = 3, .guidance = 9.0});
  EXPECT_FALSE(plain.equal(guided));
  EXPECT_TRUE(plain.equal(draw_tensor(model, {.classes = {1}})));
  EXPECT_EQ(model.trained().recipe.sample.sampling.steps, 2);
}

// The raw weights, and below the noise level of 0.5 the averaged ones.
TEST_F(RunTest, ExchangedExpertsDrawAgainAndAgain) {
  const DrawOptions options{.classes = {1, 2}, .batch = 1, .steps = 3};
  const auto drawn = [&options](Model model, int times) {
    at::Tensor samples;
    for (int time = 0; time < times; ++time) {
      samples = draw_tensor(model, options);
    }
    return samples;
  };
  const auto experts = [](bool exchanges) {
    return load(folder(), {.overrides = {"sample.low_noise=0.5",
                                         "sample.low_noise_model=" +
                                             (folder() / "model.safetensors").string()},
                           .device = "cpu",
                           .averaged = false,
                           .exchange_experts = exchanges});
  };
  const at::Tensor both = drawn(experts(false), 1);
  EXPECT_FALSE(both.equal(drawn(load(folder(), {.device = "cpu", .averaged = false}), 1)));
  EXPECT_FALSE(both.equal(drawn(loaded(), 1)));
  EXPECT_TRUE(both.equal(drawn(experts(true), 1)));
  EXPECT_TRUE(both.equal(drawn(experts(true), 2)));
}

TEST_F(RunTest, WhatTheModelDoesNotTakeIsRefused) {
  Model model = loaded();
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { (void)draw(model, {.captions = {"a red circle"}}); }),
      HasSubstr("[sample] this model is conditioned on classes"));
  EXPECT_THAT(
      error_of(
          ErrorKind::kConfig,
          [&] { (void)draw(model, {.captions = {"a"}, .text_embeddings = "texts.safetensors"}); }),
      HasSubstr("only one of captions and embedded texts"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)draw(model, {.count = -1}); }),
              HasSubstr("got -1"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)load(folder(), {.device = "gpu"}); }),
              HasSubstr("[load] device must be auto, cpu or cuda, got"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { (void)load(folder(), {.device = "cpu", .exchange_experts = true}); }),
              HasSubstr("no second expert to exchange with"));
}

TEST(LatentsTest, AreNoImagesWithoutAnAutoencoder) {
  inference::ModelRecipe recipe;
  recipe.model = {.architecture = "dit",
                  .in_channels = 4,
                  .frames = 1,
                  .height = 4,
                  .width = 4,
                  .num_classes = 2,
                  .transformer = {.depth = 1, .hidden = 32, .heads = 2, .patch = 2}};
  recipe.model = inference::resolved_model(recipe, 2);
  recipe.sample.sampling.steps = 1;
  Model model(std::make_unique<inference::TrainedModel>(
                  inference::initial_model(recipe, at::Device(at::kCPU), 0)),
              nullptr);
  EXPECT_EQ(draw_tensor(model).sizes(), (std::vector<int64_t>{2, 4, 4, 4}));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)draw(model); }),
              HasSubstr("the model draws latents of 4"));
}

TEST(TextRunTest, ClipsOfCaptionsAreStrips) {
  const fs::path folder = testing::TempDir() + "kinora-api-clips";
  fs::remove_all(folder);
  const FinishedRun run = train_recipe(
      source_path("configs/demo-video.yaml"),
      {"run.dir=" + folder.string(), "model.depth=1", "train.steps=1", "train.global_batch=2",
       "train.micro_batch=1", "train.device=cpu", "sample.steps=1",
       "text.tokenizer=" + source_path("configs/captions/spiece.model").string()});
  Model model = load(run.folder, {.device = "cpu"});
  const at::Tensor clips = draw_tensor(model, {.captions = {"a red circle moves right"}});
  ASSERT_EQ(clips.dim(), 5);
  EXPECT_EQ(clips.size(0), 1);
  const std::vector<io::Image> strips = draw(model, {.count = 2});  // of the data's texts
  ASSERT_EQ(strips.size(), 2U);
  EXPECT_GE(strips.front().width, clips.size(2) * clips.size(4));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)draw(model, {.classes = {0}}); }),
              HasSubstr("conditioned on texts, not on classes"));
  fs::remove_all(folder);
}

TEST(TextRunTest, ReferencesAreShownToAllSamples) {
  const fs::path folder = testing::TempDir() + "kinora-api-references";
  fs::remove_all(folder);
  const FinishedRun run =
      train_recipe(source_path("configs/clips-mmdit-reference.yaml"),
                   {"run.dir=" + folder.string(), "model.depth=1", "model.parallel_depth=1",
                    "model.hidden=48", "model.heads=2", "train.steps=2", "train.global_batch=2",
                    "train.device=cpu", "train.precision=fp32", "data.frames=2",
                    "data.validation=0", "validation.every=0", "sample.steps=1", "ema.decays=[]",
                    "text.tokenizer=" + source_path("configs/captions/spiece.model").string()});
  Model model = load(run.folder, {.device = "cpu", .averaged = false});
  io::Image picture;
  io::set_size(picture, 40, 50);
  const std::string file = (folder / "picture.png").string();
  io::write_png(file, picture);
  const auto with = [&](const std::vector<std::string>& references) {
    return draw_tensor(model, {.captions = {"it is moving up"}, .references = references});
  };
  EXPECT_FALSE(with({file}).equal(with({})));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         (void)with({file, file, file});
                       }),
              HasSubstr("up to 2 references (model.references), got 3"));
  fs::remove_all(folder);
}

}  // namespace run_test
}  // namespace kinora
