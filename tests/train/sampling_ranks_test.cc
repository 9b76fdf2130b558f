// Samples that several ranks draw together against those of one rank.
#include "kinora/pipelines/sampling_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kinora/inference/conditions.h"
#include "kinora/inference/trained_model.h"
#include "kinora/ops/random.h"
#include "kinora/optim/weight_exchange.h"
#include "kinora/pipelines/clips.h"
#include "kinora/train/bench/benchmark.h"
#include "tests/comm/ranks.h"

namespace kinora::train {
namespace sampling_ranks_test {

using parallel::SequenceScheme;

/// Clips of nine tokens a frame, which no even number of ranks divides.
inference::ModelRecipe tiny_clips() {
  inference::ModelRecipe config;
  config.model = {.architecture = "stdit",
                  .in_channels = 4,
                  .frames = 3,
                  .height = 6,
                  .width = 6,
                  .learn_sigma = false,
                  .time_scale = 1000.0,
                  .text_channels = 8,
                  .text_tokens = 5,
                  .transformer = {.depth = 2, .hidden = 48, .heads = 4, .patch = 2}};
  config.model = models::resolved(config.model);
  config.model.num_classes = 1;
  config.path = inference::Path::kPlain;
  config.precision = Precision::kFp32;
  config.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  config.sample.sampling.steps = 3;
  config.sample.sampling.guidance = 3.0;
  return config;
}

/// Captions of sample i.
pipelines::DrawConditions captions(const models::ModelConfig& model, int64_t first, int64_t size) {
  data::Batch batch;
  batch.sample_index = at::arange(first, first + size, at::kLong);
  batch.images = inference::unseen_samples(model, size);
  batch.text = ops::random_normal({size, model.text_tokens, model.text_channels},
                                  batch.sample_index, 5, 0, RandomPurpose::kTest, at::kCPU);
  batch.text_lengths = batch.sample_index.remainder(model.text_tokens) + 1;
  batch.fps = at::full({size}, 8.0, at::kFloat);
  pipelines::DrawConditions result{.conditions = inference::conditions_of(batch, model),
                                   .null = {}};
  result.null = inference::null_of(result.conditions, 1);
  return result;
}

/// Clips by number.
struct Drawn {
  int64_t first;
  at::Tensor clips;
};

/// Models by noise level.
enum class Experts : uint8_t { kOne, kTwo, kTwoExchanged };

inference::TrainedModel made(const inference::ModelRecipe& recipe, uint64_t seed,
                             const inference::ModelGroups& groups) {
  inference::TrainedModel trained = inference::initial_model(recipe, at::kCPU, seed, {}, groups);
  randomise_zeros(trained.model->named_parameters(), *trained.arena);
  return trained;
}

inference::TrainedModel made(const inference::ModelGroups& groups, Experts experts) {
  inference::ModelRecipe recipe = tiny_clips();
  recipe.sample.sampling.low_noise = experts == Experts::kOne ? 0.0 : 0.5;
  inference::TrainedModel trained = made(recipe, 7, groups);
  if (experts == Experts::kOne) {
    return trained;
  }
  inference::TrainedModel second = made(recipe, 8, groups);
  if (experts == Experts::kTwo) {
    trained.low_noise = std::make_unique<inference::TrainedModel>(std::move(second));
    return trained;
  }
  trained.experts = std::make_unique<optim::WeightExchange>(*trained.arena);
  trained.experts->bring(optim::WeightExchange::Set::kSecond);
  const std::vector<at::Tensor> from = second.arena->weight_bytes();
  const std::vector<at::Tensor> to = trained.arena->weight_bytes();
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(from[i]);
  }
  return trained;
}

/// Two pieces, the first from a given frame: those of this rank's group.
Drawn drawn(const comm::Group& world, int64_t samples, const pipelines::SamplingShares& shares,
            SequenceScheme scheme, bool batch_invariant = false, Experts experts = Experts::kOne) {
  inference::TrainedModel trained = made(
      inference::ModelGroups::of(world, {.tensor = shares.tensor, .pipeline = shares.pipeline}),
      experts);
  trained.recipe.sample.sampling.batch_invariant = batch_invariant;
  const models::ModelConfig& model = trained.recipe.model;
  const parallel::Mesh mesh(world, shares.mesh());
  const pipelines::SampleRange own = pipelines::own_samples(samples, mesh);
  const auto denoiser = share(trained, model, mesh, scheme, own.count);
  pipelines::ClipOptions options{.given = {}, .pieces = 2, .overlap = 1};
  options.given.frames = ops::random_normal({1, 4, 1, 6, 6}, at::arange(1, at::kLong), 5, 1,
                                            RandomPurpose::kTest, at::kCPU);
  options.given.places = {2};
  const at::Tensor clips = pipelines::draw_clips(
      *denoiser, sampler_of(trained.recipe, trained.objective), trained.recipe.sample.sampling,
      {.samples = pipelines::numbered_samples(own.first, own.count, 3, 3.0), .batch = 2},
      model.sample_shape(), options,
      [&](int64_t first, int64_t size) { return captions(model, own.first + first, size); },
      at::kCPU);
  return {own.first, clips};
}

void expect_as_alone(int64_t ranks, int64_t samples, const pipelines::SamplingShares& shares,
                     SequenceScheme scheme = SequenceScheme::kAuto) {
  comm::run_on_ranks(ranks, [&](const comm::Group& world) {
    const auto [first, together] = drawn(world, samples, shares, scheme);
    const at::Tensor all = drawn(comm::Group(), samples, {}, scheme).clips;
    const at::Tensor alone = all.narrow(0, first, together.size(0));
    ASSERT_EQ(together.sizes(), alone.sizes());
    EXPECT_TRUE(at::allclose(together, alone, 1e-4, 1e-4))
        << (together - alone).abs().max().item<double>();
  });
}

TEST(SamplingRanksTest, GroupsDrawSamplesOfTheirOwn) {
  expect_as_alone(2, 3, {.groups = 2});
}

TEST(SamplingRanksTest, GuidanceOnTwoRanks) {
  expect_as_alone(2, 3, {.guidance = 2});
}

TEST(SamplingRanksTest, TokensByDsp) {
  expect_as_alone(2, 1, {.sequence = 2}, SequenceScheme::kDsp);
}

TEST(SamplingRanksTest, TokensByUlysses) {
  expect_as_alone(2, 2, {.sequence = 2}, SequenceScheme::kUlysses);
}

TEST(SamplingRanksTest, GuidanceAndTokens) {
  expect_as_alone(4, 1, {.guidance = 2, .sequence = 2}, SequenceScheme::kDsp);
}

TEST(SamplingRanksTest, GroupsThatShare) {
  expect_as_alone(4, 3, {.groups = 2, .guidance = 2}, SequenceScheme::kUlysses);
}

TEST(SamplingRanksTest, BlocksOneBehindTheOther) {
  expect_as_alone(2, 3, {.pipeline = 2});
}

TEST(SamplingRanksTest, GroupsThatShareBlocks) {
  expect_as_alone(4, 3, {.pipeline = 2, .groups = 2});
}

TEST(SamplingRanksTest, PartsOfBlocksOneBehindTheOther) {
  expect_as_alone(4, 1, {.pipeline = 2, .tensor = 2});
}

// Each rank exchanges what it has of them.
TEST(SamplingRanksTest, TwoExpertsAreSharedTogetherOrExchanged) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    constexpr SequenceScheme kScheme = SequenceScheme::kUlysses;
    const auto clips = [](const comm::Group& ranks, const pipelines::SamplingShares& shares,
                          Experts experts) {
      return drawn(ranks, 3, shares, kScheme, /*batch_invariant=*/false, experts).clips;
    };
    const at::Tensor alone = clips(comm::Group(), {}, Experts::kTwo);
    EXPECT_FALSE(at::allclose(clips(comm::Group(), {}, Experts::kOne), alone, 1e-2, 1e-2));
    EXPECT_TRUE(at::equal(clips(comm::Group(), {}, Experts::kTwoExchanged), alone));
    for (const pipelines::SamplingShares& shares : {pipelines::SamplingShares{.guidance = 2},
                                                    {.sequence = 2},
                                                    {.pipeline = 2},
                                                    {.tensor = 2}}) {
      const at::Tensor both = clips(world, shares, Experts::kTwo);
      EXPECT_TRUE(at::allclose(both, alone, 1e-4, 1e-4))
          << (both - alone).abs().max().item<double>();
      EXPECT_TRUE(at::equal(clips(world, shares, Experts::kTwoExchanged), both));
    }
  });
}

// On the same ranks, in every bit; the last batch is of one sample.
TEST(SamplingRanksTest, BatchInvariant) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    const pipelines::SamplingShares shares{.guidance = 2, .sequence = 2};
    const auto first = [&](int64_t samples) {
      return drawn(world, samples, shares, SequenceScheme::kDsp, /*batch_invariant=*/true)
          .clips.narrow(0, 0, 1);
    };
    EXPECT_TRUE(at::equal(first(3), first(1)));
  });
}

// Of different samples the comparison above must be able to fail.
TEST(SamplingRanksTest, SamplesDiffer) {
  const at::Tensor clips = drawn(comm::Group(), 2, {}, SequenceScheme::kAuto).clips;
  EXPECT_GT((clips[0] - clips[1]).abs().max().item<double>(), 0.1);
}

}  // namespace sampling_ranks_test
}  // namespace kinora::train
