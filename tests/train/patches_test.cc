// Whole drawings with sample.patches, with guidance, by one process and by ranks that each have
// some of the blocks, against passes over all tokens.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kinora/diffusion/sampler.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/trained_model.h"
#include "kinora/ops/random.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/models/transformers/stale_tokens.h"
#include "tests/tolerances.h"

namespace kinora::train {
namespace patches_test {

constexpr int64_t kSteps = 4;
constexpr int64_t kSamples = 2;

/// Of four blocks, 12 tokens a frame and 7 of a text.
inference::ModelRecipe tiny(const std::string& architecture) {
  inference::ModelRecipe recipe;
  models::ModelConfig& model = recipe.model;
  model = {.architecture = architecture,
           .in_channels = 4,
           .height = 8,
           .width = 6,
           .learn_sigma = false,
           .time_scale = 1000.0,
           .transformer = {.depth = 4, .hidden = 48, .heads = 4, .patch = 2}};
  if (architecture == "dit") {
    model.num_classes = 5;
  } else {
    model.text_channels = 8;
    model.text_tokens = 7;
  }
  if (architecture == "stdit") {
    model.frames = 3;
  } else if (architecture == "flux") {
    model.pooled_channels = 8;
    model.transformer.depth = 2;
    model.transformer.parallel_depth = 2;
  }
  model = models::resolved(model);
  model.num_classes = std::max<int64_t>(model.num_classes, 1);
  recipe.path = inference::Path::kPlain;
  recipe.precision = Precision::kFp32;
  recipe.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  recipe.sample.sampling.steps = kSteps;
  recipe.sample.sampling.guidance = 3.0;
  return recipe;
}

/// With weights of which blocks make something.
inference::TrainedModel made(const inference::ModelRecipe& recipe,
                             const inference::ModelGroups& groups = {}) {
  constexpr double kDeviation = 0.15;
  inference::TrainedModel trained = inference::initial_model(recipe, at::kCPU, 7, {}, groups);
  int64_t index = 0;
  for (const auto& [path, parameter] : trained.model->named_parameters()) {
    std::vector<int64_t> shape = parameter->whole_shape();
    shape.insert(shape.begin(), 1);
    const at::Tensor values = ops::random_normal(shape, at::arange(index, index + 1, at::kLong), 7,
                                                 0, RandomPurpose::kTest, at::kCPU);
    trained.arena->load_parameter(path, kDeviation * values.squeeze(0));
    ++index;
  }
  return trained;
}

at::Tensor draw(const inference::TrainedModel& trained, diffusion::Denoiser& denoiser) {
  const models::ModelConfig& model = trained.recipe.model;
  const at::Tensor samples = at::arange(kSamples, at::kLong);
  const auto normal = [&](std::vector<int64_t> shape, uint64_t stream) {
    return ops::random_normal(shape, samples, 5, stream, RandomPurpose::kTest, at::kCPU);
  };
  data::Batch batch{.images = inference::unseen_samples(model, kSamples)};
  batch.sample_index = samples;
  batch.labels = samples.remainder(model.num_classes);
  if (model.takes_text()) {
    batch.text = normal({kSamples, model.text_tokens, model.text_channels}, 0);
    batch.text_lengths = samples + 3;
    batch.pooled = normal({kSamples, model.pooled_width()}, 1);
  }
  batch.fps = at::full({kSamples}, 8.0, at::kFloat);
  const diffusion::Conditions conditions = inference::conditions_of(batch, model);
  diffusion::Guidance guidance = trained.recipe.sample.sampling.guidance_of();
  guidance.null = inference::null_of(conditions, model.num_classes);
  std::vector<int64_t> shape = model.sample_shape();
  shape.insert(shape.begin(), kSamples);
  return diffusion::sample(denoiser, sampler_of(trained.recipe, trained.objective), shape,
                           conditions, guidance, {.seed = 3, .sample_index = samples}, at::kCPU);
}

/// By the ranks of a mesh of these shares.
at::Tensor drawn(const inference::ModelRecipe& recipe, const comm::Group& world = {},
                 const pipelines::SamplingShares& shares = {}) {
  inference::TrainedModel trained = made(
      recipe,
      inference::ModelGroups::of(world, {.tensor = shares.tensor, .pipeline = shares.pipeline}));
  const auto denoiser = share(trained, trained.recipe.model, parallel::Mesh(world, shares.mesh()),
                              parallel::SequenceScheme::kAuto, 2 * kSamples);
  return draw(trained, *denoiser);
}

/// By the definition: behind `warmup` evaluations each is one of patches.
class StaleDenoiser : public diffusion::Denoiser {
 public:
  StaleDenoiser(models::Model& model, int64_t patches, int64_t warmup)
      : model_(model), patches_(patches), warmup_(warmup) {
    model.use_sequence(tokens_);
  }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& /*pass*/) override {
    return tokens_->evaluate(model_, evaluations_++ < warmup_ ? 1 : patches_, x_t, t, conditions);
  }

  models::Model& model_;
  int64_t patches_;
  int64_t warmup_;
  std::shared_ptr<models::StaleTokens> tokens_ = std::make_shared<models::StaleTokens>();
  int64_t evaluations_ = 0;
};

at::Tensor drawn_by_definition(const inference::ModelRecipe& recipe, int64_t patches,
                               int64_t warmup) {
  const inference::TrainedModel trained = made(recipe);
  StaleDenoiser denoiser(*trained.model, patches, warmup);
  return draw(trained, denoiser);
}

double difference(const at::Tensor& one, const at::Tensor& other) {
  return ((one - other).abs().max() / other.abs().max()).item<double>();
}

inference::ModelRecipe with_patches(inference::ModelRecipe recipe, int64_t patches,
                                    int64_t warmup = 1) {
  recipe.sample.sampling.cache = {.patches = patches, .patch_warmup = warmup};
  return recipe;
}

class PatchesOfFamilyTest : public testing::TestWithParam<const char*> {};

/// By one process and by `world`.
void expect_by_definition(const comm::Group& world, inference::Path path, int64_t patches,
                          int64_t warmup) {
  const inference::ModelRecipe recipe = tiny(PatchesOfFamilyTest::GetParam());
  inference::ModelRecipe own = with_patches(recipe, patches, warmup);
  own.path = path;
  const at::Tensor expected = drawn_by_definition(recipe, patches, warmup);
  EXPECT_GT(difference(expected, drawn(recipe)), 100 * tolerance::kOtherOrder);
  EXPECT_LT(difference(drawn(own), expected), tolerance::kOtherOrder);
  EXPECT_LT(difference(drawn(own, world, {.pipeline = world.size()}), expected),
            tolerance::kOtherOrder);
}

TEST_P(PatchesOfFamilyTest, TwoRanksDrawWhatTheDefinitionSays) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    expect_by_definition(world, inference::Path::kPlain, 3, 1);
  });
}

TEST_P(PatchesOfFamilyTest, FourRanksDoOnTheFastPath) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    expect_by_definition(world, inference::Path::kFast, 5, 2);
  });
}

INSTANTIATE_TEST_SUITE_P(All, PatchesOfFamilyTest,
                         testing::Values("dit", "pixart", "flux", "stdit"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PatchesTest, StepsOfTheWarmupAreExact) {
  const inference::ModelRecipe recipe = tiny("dit");
  const at::Tensor exact = drawn(recipe);
  EXPECT_LT(difference(drawn(with_patches(recipe, 4, kSteps)), exact), tolerance::kStored);
  EXPECT_TRUE(at::equal(drawn(with_patches(recipe, 1)), exact));
}

// Evaluations of other rows, as where guidance is on in some steps only, have a warm-up of their
// own.
TEST(PatchesTest, RowsOfTheirOwnBegin) {
  inference::ModelRecipe recipe = tiny("dit");
  recipe.sample.sampling.guidance_alternates_after = 2;  // steps 0, 1 and 2; not 3
  const at::Tensor all = drawn(with_patches(recipe, 3, 3));
  EXPECT_LT(difference(all, drawn(recipe)), tolerance::kStored);
  EXPECT_GT(difference(drawn(with_patches(recipe, 3, 2)), all), 100 * tolerance::kOtherOrder);
}

void expect_as_alone(const comm::Group& world, const pipelines::SamplingShares& shares) {
  const inference::ModelRecipe recipe = with_patches(tiny("flux"), 3);
  EXPECT_LT(difference(drawn(recipe, world, shares), drawn(recipe)), tolerance::kOtherOrder);
}

TEST(PatchesTest, WithPartsOfBlocks) {
  comm::run_on_ranks(
      4, [](const comm::Group& world) { expect_as_alone(world, {.pipeline = 2, .tensor = 2}); });
}

TEST(PatchesTest, WithGuidanceOnTwoRanks) {
  comm::run_on_ranks(2, [](const comm::Group& world) { expect_as_alone(world, {.guidance = 2}); });
}

TEST(PatchesTest, RanksThatDivideTokensAreRefused) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    EXPECT_THAT(
        error_of(ErrorKind::kConfig,
                 [&] { (void)drawn(with_patches(tiny("dit"), 2), world, {.sequence = 2}); }),
        testing::HasSubstr("sample.patches and --sequence 2 both divide the tokens"));
  });
}

}  // namespace patches_test
}  // namespace kinora::train
