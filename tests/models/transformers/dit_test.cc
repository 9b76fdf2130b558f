#include "kinora/models/transformers/dit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>

#include "kinora/core/error.h"
#include "kinora/diffusion/objective.h"
#include "kinora/models/families.h"
#include "tests/models/transformers/fixture.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace dit_test {

void set_weights(DiT& model, const Fixture& fixture, bool train) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->value = fixture.tensor("weights." + path);
    ASSERT_EQ(parameter->value.sizes(), at::IntArrayRef(parameter->shape)) << path;
    if (train) {
      parameter->value.set_requires_grad(true);
      parameter->grad = at::zeros_like(parameter->value);
    }
  }
}

void expect_output(DiT& model, const Fixture& fixture) {
  const at::Tensor output =
      model.forward(fixture.tensor("forward.x_t"), fixture.tensor("forward.t"),
                    {.labels = fixture.tensor("forward.labels")});
  EXPECT_LT(relative_error(output, fixture.tensor("forward.output")), tolerance::kWholeModel);
}

/// The fixture's loss and the gradient of every parameter, by `how`.
void expect_training_pass(DiT& model, const Fixture& fixture, const std::string& how) {
  const at::Tensor x0 = fixture.tensor("loss.x0");
  const diffusion::Objective objective = fixture.objective();
  const diffusion::NoisedBatch batch =
      noised(objective, x0, fixture.tensor("loss.noise"), fixture.tensor("loss.t"));
  const at::Tensor prediction =
      model.forward(batch.x_t, batch.t, {.labels = fixture.tensor("loss.labels")});
  const diffusion::Loss loss = diffusion::loss(objective, prediction, batch, x0);
  EXPECT_LT(relative_error(loss.per_sample, fixture.tensor("loss.loss")), tolerance::kWholeModel);
  torch::autograd::backward({loss.mean}, {});
  for (const auto& [path, parameter] : model.named_parameters()) {
    EXPECT_LT(relative_error(without_key_bias(path, parameter->grad),
                             without_key_bias(path, fixture.tensor("grad." + path))),
              tolerance::kWholeModel)
        << path << ", " << how;
  }
}

class DiTFixtureTest : public testing::TestWithParam<const char*> {};

TEST_P(DiTFixtureTest, PositionTableMatchesReference) {
  const Fixture fixture(GetParam());
  const ModelConfig config = fixture.config();
  const at::Tensor table = sin_cos_position_embedding(
      config.transformer.hidden, shape_of(config).rows, shape_of(config).columns);
  EXPECT_LT(relative_error(table, fixture.tensor("weights.pos_embed")), 1e-6);
}

TEST_P(DiTFixtureTest, ForwardMatchesReference) {
  const Fixture fixture(GetParam());
  DiT model(fixture.config());
  set_weights(model, fixture, false);
  expect_output(model, fixture);
}

TEST_P(DiTFixtureTest, EveryGradientMatchesReferenceForEveryRecomputation) {
  const Fixture fixture(GetParam());
  const ModelConfig config = fixture.config();
  for (int64_t recompute = 0; recompute <= config.transformer.depth; ++recompute) {
    DiT model(config);
    set_weights(model, fixture, true);
    model.set_recompute(recompute);
    expect_training_pass(model, fixture, std::to_string(recompute) + " blocks recomputed");
  }
}

struct Recomputation {
  ops::Recompute level;
  int64_t blocks;
};

// Composed of ATen calls on the CPU, so what is tested is the written-out backward, the order of
// the stages and what is computed again.
TEST_P(DiTFixtureTest, FastPathMatchesReferenceAtEveryLevelOfRecomputation) {
  const Fixture fixture(GetParam());
  const ModelConfig config = fixture.config();
  const auto kernels =
      std::make_shared<ops::BlockKernels>(ops::KernelOptions(), at::kCPU, at::kFloat, false);
  for (const auto& [level, blocks] :
       {Recomputation{ops::Recompute::kNone, 0}, Recomputation{ops::Recompute::kElementwise, 0},
        Recomputation{ops::Recompute::kMlp, 0}, Recomputation{ops::Recompute::kMlp, 1},
        Recomputation{ops::Recompute::kNone, config.transformer.depth}}) {
    DiT model(config);
    set_weights(model, fixture, true);
    model.set_recompute(blocks);
    model.use_fast_path(kernels, level);
    expect_training_pass(model, fixture,
                         "level " + std::to_string(static_cast<int>(level)) + ", " +
                             std::to_string(blocks) + " blocks");
    const at::NoGradGuard no_grad;
    expect_output(model, fixture);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, DiTFixtureTest,
    testing::Values("dit_latent.safetensors", "dit_pixel_flow.safetensors"), [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find('.'));
    });

ModelConfig named(const std::string& name) {
  ModelConfig config;
  config.name = name;
  config.in_channels = 4;
  config.height = 32;
  config.width = 32;
  config.num_classes = 1000;
  return resolved(config);
}

// Parameter counts and Gflops (10^9 multiply-accumulates) of the paper's table 1 and the original
// repository; the position table counts as a parameter there.
TEST(ModelConfigTest, SizesMatchThePaper) {
  struct Row {
    const char* name;
    double millions;
    double gmacs;
  };
  for (const Row& row :
       {Row{"DiT-S/2", 32.96, 6.06}, Row{"DiT-B/2", 130.51, 23.01}, Row{"DiT-L/2", 458.10, 80.71},
        Row{"DiT-XL/2", 675.13, 118.64}, Row{"DiT-XL/4", 0, 29.05}, Row{"DiT-XL/8", 0, 7.39}}) {
    const ModelConfig config = named(row.name);
    if (row.millions > 0) {
      DiT model(config);
      int64_t count = shape_of(config).tokens_a_frame() * config.transformer.hidden;
      for (const auto& [path, parameter] : model.named_parameters()) {
        count += parameter->numel();
      }
      EXPECT_NEAR(static_cast<double>(count) / 1e6, row.millions, 0.006) << row.name;
    }
    EXPECT_NEAR(forward_macs(config) / 1e9, row.gmacs, 0.005 * row.gmacs) << row.name;
  }
}

TEST(ModelConfigTest, BadSizesAreRefused) {
  ModelConfig config = named("DiT-S/2");
  config.transformer.heads = 5;
  EXPECT_THROW((void)resolved(config), Error);
  config = named("DiT-S/2");
  config.height = 33;
  EXPECT_THROW((void)resolved(config), Error);
  config.name = "DiT-M/2";
  EXPECT_THROW((void)resolved(config), Error);
  EXPECT_THROW((void)resolved(ModelConfig{}), Error);
}

TEST(DiTPlanTest, BucketsHoldEveryParameterOnce) {
  const ModelConfig config = named("DiT-S/8");
  DiT model(config);
  std::multiset<std::string> in_buckets;
  for (const nn::BucketSpec& bucket : DiT(config).buckets()) {
    in_buckets.insert(bucket.parameters.begin(), bucket.parameters.end());
  }
  std::multiset<std::string> in_model;
  for (const auto& [path, parameter] : model.named_parameters()) {
    in_model.insert(path);
  }
  EXPECT_EQ(in_buckets, in_model);
}

TEST(DiTTest, WrongInputsAreNamed) {
  const Fixture fixture("dit_latent.safetensors");
  DiT model(fixture.config());
  set_weights(model, fixture, false);
  const at::Tensor x = fixture.tensor("forward.x_t");
  const at::Tensor t = fixture.tensor("forward.t");
  const diffusion::Conditions conditions{.labels = fixture.tensor("forward.labels")};
  EXPECT_THROW((void)model.forward(x.narrow(3, 0, 4), t, conditions), Error);
  EXPECT_THROW((void)model.forward(x, t.to(at::kDouble), conditions), Error);
  EXPECT_THROW((void)model.forward(x, t, {}), Error);
}

TEST(DiTTest, TapsSeeEveryModuleInOrderOfComputation) {
  const Fixture fixture("dit_latent.safetensors");
  DiT model(fixture.config());
  set_weights(model, fixture, false);
  std::vector<std::string> seen;
  model.set_tap([&seen](const std::string& path, const at::Tensor& output) {
    seen.push_back(path);
    return output;
  });
  (void)model.forward(fixture.tensor("forward.x_t"), fixture.tensor("forward.t"),
                      {.labels = fixture.tensor("forward.labels")});
  EXPECT_EQ(seen.front(), "x_embedder");
  EXPECT_EQ(seen.back(), "");
  const auto position = [&seen](const std::string& path) {
    return std::find(seen.begin(), seen.end(), path) - seen.begin();
  };
  EXPECT_LT(position("blocks.0.attn.qkv"), position("blocks.0.attn"));
  EXPECT_LT(position("blocks.0"), position("blocks.1.attn.qkv"));
  EXPECT_LT(position("final_layer"), static_cast<int64_t>(seen.size()) - 1);
}

}  // namespace dit_test
}  // namespace kinora::models
