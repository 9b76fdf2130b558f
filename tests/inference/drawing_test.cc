#include "kinora/inference/drawing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/error_of.h"
#include "tests/inference/family_models.h"
#include "tests/train/tiny_dit.h"

namespace kinora::inference {
namespace drawing_test {

using testing::HasSubstr;

/// A flow of random weights on 16 x 16 pixels.
class DrawingTest : public testing::Test {
 protected:
  DrawingTest() {
    ModelRecipe recipe;
    recipe.model = train::TinyDit::config();
    recipe.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
    recipe.sample.sampling.steps = 3;
    trained_ = initial_model(recipe, at::kCPU, 1);
    train::TinyDit tiny;
    for (const auto& [path, parameter] : tiny.model.named_parameters()) {
      trained_.arena->load_parameter(path, parameter->value.detach());
    }
  }

  at::Tensor drawn(const std::vector<Request>& requests, int64_t batch = 64) {
    return Drawing(trained_, requests, {.batch = batch}).draw();
  }

  TrainedModel trained_;
};

TEST_F(DrawingTest, EightBitProductsWantAGpu) {
  ModelRecipe recipe = trained_.recipe;
  recipe.sample.sampling.fp8 = true;
  const auto refusal = [&] {
    return error_of(ErrorKind::kConfig, [&] { (void)initial_model(recipe, at::kCPU, 1); });
  };
  EXPECT_THAT(refusal(), HasSubstr("takes the plain one here"));
  recipe.path = Path::kFast;
  EXPECT_THAT(refusal(), HasSubstr("sample.fp8 needs a GPU of compute capability 8.9"));
}

TEST_F(DrawingTest, AStepCacheIsOfOneDrawingAndHasAPrice) {
  const Request request{.classes = {1, 2}, .seed = 5, .guidance = 4.0};
  const at::Tensor whole = drawn({request});
  const diffusion::StepCacheConfig cache{.kind = diffusion::StepCacheConfig::Kind::kFirstBlock,
                                         .threshold = 1e3};
  trained_.recipe.sample.sampling.cache = cache;
  trained_.model->use_step_cache(cache);
  const at::Tensor first = drawn({request});
  EXPECT_FALSE(at::equal(first, whole));
  EXPECT_TRUE(at::equal(drawn({request}), first)) << "nothing is left of the first";
  const int64_t depth = trained_.recipe.model.transformer.depth;
  const diffusion::StepCacheUse use = trained_.model->step_cache_use();
  EXPECT_EQ(use.blocks.all, 2 * 3 * depth);
  EXPECT_EQ(use.blocks.left_out, 2 * 2 * (depth - 1)) << "not of the first of three steps";
  Drawing drawing(trained_, {request}, {.batch = 2});
  const Drawing::CacheTrial trial = drawing.try_cache();
  EXPECT_TRUE(at::equal(trial.with, first));
  EXPECT_TRUE(at::equal(trial.without, whole));
  EXPECT_DOUBLE_EQ(trial.price.relative_error, pipelines::relative_error(first, whole));
  EXPECT_THAT(trial.price.describe(), HasSubstr("times as fast as without ("));
  EXPECT_TRUE(at::equal(drawn({request}), first)) << "the cache is there again";
}

TEST_F(DrawingTest, StepCachesGoByNoiseLevelsAndByRows) {
  using Kind = diffusion::StepCacheConfig::Kind;
  const int64_t depth = trained_.recipe.model.transformer.depth;
  const auto left_out = [&](const diffusion::StepCacheConfig& cache) {
    trained_.model->use_step_cache(cache);
    (void)drawn({{.classes = {1}, .guidance = 4.0}});
    return trained_.model->step_cache_use();
  };
  pipelines::SamplingConfig& sampling = trained_.recipe.sample.sampling;
  // Of three steps two end where the next begins: five evaluations at three noise levels.
  sampling.method = pipelines::SamplingConfig::Method::kHeun;
  const auto heun = left_out({.kind = Kind::kPab,
                              .polynomial = {},
                              .ranges = {0.01, 0.0, 0.0, 0.0},
                              .interval = {0.0, 1.0}})
                        .branches[static_cast<size_t>(ops::BranchKind::kSpace)];
  EXPECT_EQ(heun.all, 5 * depth);
  EXPECT_EQ(heun.left_out, 2 * depth);
  // With guidance, without, and with it again.
  sampling.method = pipelines::SamplingConfig::Method::kEuler;
  sampling.guidance_alternates_after = 1;
  const auto by_rows = left_out({.kind = Kind::kFirstBlock, .threshold = 1e3}).blocks;
  EXPECT_EQ(by_rows.all, 3 * depth);
  EXPECT_EQ(by_rows.left_out, depth - 1);
}

TEST_F(DrawingTest, GraphsDoNotRepeatWhatOtherSamplesDecided) {
  ModelRecipe recipe = trained_.recipe;
  recipe.kernels.graphs = ops::Switch::kOn;
  recipe.sample.sampling.cache = {.kind = diffusion::StepCacheConfig::Kind::kTea};
  recipe.sample.sampling.batch_invariant = true;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)initial_model(recipe, at::kCPU, 1); }),
              HasSubstr("first_block and tea decide for each sample what to compute"));
}

// What the pictures of several users have in common is the time that they take.
TEST_F(DrawingTest, RequestsShareBatchesAndEachIsAsAlone) {
  const std::vector<Request> requests = {
      {.classes = {1}, .count = 2, .seed = 5, .guidance = 4.0},
      {.classes = {3, 0}, .count = 3, .seed = 8, .guidance = 1.0},
      {.classes = {1}, .seed = 9}};
  const at::Tensor together = drawn(requests);
  ASSERT_EQ(together.size(0), 6);
  for (const int64_t batch : {2, 4}) {
    EXPECT_LT((drawn(requests, batch) - together).abs().max().item<double>(), 1.0 / 255.0);
  }
  int64_t first = 0;
  for (const Request& request : requests) {
    const at::Tensor alone = drawn({request});
    const at::Tensor among = together.narrow(0, first, alone.size(0));
    // Pixels in [-1, 1]: a level is 2 / 255.
    EXPECT_LT((among - alone).abs().max().item<double>(), 1.0 / 255.0) << first;
    first += alone.size(0);
  }
  const at::Tensor other = drawn({{.classes = {1}, .count = 2, .seed = 6, .guidance = 4.0}});
  EXPECT_GT((other - together.narrow(0, 0, 2)).abs().max().item<double>(), 0.1);
}

TEST_F(DrawingTest, SaysWhatEachSampleWasAskedToShow) {
  const Drawing drawing(trained_, {{.classes = {2, 0}, .count = 3}, {.classes = {1}}}, {});
  std::vector<int64_t> labels;
  for (const Asked& asked : drawing.asked()) {
    labels.push_back(asked.label.value());
  }
  EXPECT_THAT(labels, testing::ElementsAre(2, 0, 2, 1));
}

TEST_F(DrawingTest, StepsAreOfOneDrawingOnly) {
  const at::Tensor before = drawn({{.classes = {1}}});
  const Drawing other(trained_, {{.classes = {1}}}, {.steps = 7});
  EXPECT_EQ(other.recipe().sample.sampling.steps, 7);
  EXPECT_TRUE(at::equal(drawn({{.classes = {1}}}), before));
}

TEST_F(DrawingTest, WhatTheModelDoesNotTakeIsRefused) {
  const auto refusal = [this](const Request& request, const DrawOptions& options = {}) {
    return error_of(ErrorKind::kConfig, [&] { return Drawing(trained_, {request}, options); });
  };
  EXPECT_THAT(refusal({.captions = {"a"}}), HasSubstr("conditioned on classes"));
  EXPECT_THAT(refusal({.captions = {"a"}, .text_embeddings = "b"}), HasSubstr("only one"));
  EXPECT_THAT(refusal({.classes = {-1}}), HasSubstr("got -1"));
  EXPECT_THAT(refusal({.count = -1}), HasSubstr("got -1"));
  EXPECT_THAT(refusal({}, {.size = {.height = 32}}), HasSubstr("height must be 16"));
  EXPECT_THAT(refusal({}, {.pieces = 2}), HasSubstr("models of clips"));
}

TEST(DrawingWildcardsTest, EachSampleChoosesForItself) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("drawing-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "color.txt") << "red\nblue\ngreen\n";
  TrainedModel trained = tiny_model(family_named("pixart"), at::kCPU);
  const auto asked = [&](uint64_t seed, int64_t count) {
    const Drawing drawing(trained,
                          {{.captions = {"a __color__ circle", "a cross"},
                            .wildcards = folder.string(),
                            .count = count,
                            .seed = seed}},
                          {});
    std::vector<std::string> captions;
    for (const Asked& each : drawing.asked()) {
      captions.push_back(each.caption);
    }
    return captions;
  };
  const std::vector<std::string> many = asked(1, 12);
  EXPECT_GT(std::set<std::string>(many.begin(), many.end()).size(), 2U);
  EXPECT_EQ(many[3], "a cross");
  const std::vector<std::string> first(many.begin(), many.begin() + 5);
  EXPECT_EQ(asked(1, 5), first) << "a larger count goes on";
  EXPECT_EQ(asked(1, 0).size(), 2U);
  EXPECT_NE(asked(2, 12), many);
  EXPECT_THAT(
      error_of(ErrorKind::kConfig,
               [&] { return Drawing(trained, {{.wildcards = folder.string()}}, {}).draw(); }),
      HasSubstr("wildcards stand in captions"));
  std::filesystem::remove_all(folder);
}

}  // namespace drawing_test
}  // namespace kinora::inference
