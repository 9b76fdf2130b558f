// Every family of models with its tokens on several ranks, against the committed references.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/parallel/sequence.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/models/transformers/video_fixture.h"
#include "tests/parallel/plans.h"
#include "tests/tolerances.h"

namespace kinora::parallel {
namespace models_test {

using models::VideoFixture;

struct Family {
  const char* fixture;
  const char* architecture;
};

class ModelsTest : public testing::TestWithParam<Family> {};

/// Whether a scheme is for such a model: all have two heads.
bool suits(SequenceScheme scheme, int64_t ranks, const std::string& architecture) {
  const bool clips = architecture == "vdit";
  return scheme == SequenceScheme::kDsp
             ? !clips
             : ranks == 2 || scheme == SequenceScheme::kRing || scheme == SequenceScheme::kNdRing ||
                   scheme == SequenceScheme::kUsp;
}

/// Averages gradients over the ranks, as data parallelism does, and compares them.
template <typename AnyFixture>
void expect_mean_gradients(models::Model& model, const AnyFixture& fixture,
                           const comm::Group& world) {
  std::vector<at::Tensor> gradients;
  std::vector<int64_t> sizes;
  for (const auto& [path, parameter] : model.named_parameters()) {
    gradients.push_back(parameter->grad.flatten());
    sizes.push_back(parameter->grad.numel());
  }
  const at::Tensor all = at::cat(gradients);
  world.all_reduce(all, comm::Reduction::kMean);
  gradients = all.split_with_sizes(sizes);
  size_t i = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    const at::Tensor mean = gradients[i++].view_as(parameter->grad);
    EXPECT_LT(
        models::relative_error(models::without_key_bias(path, mean),
                               models::without_key_bias(path, fixture.tensor("grad." + path))),
        tolerance::kWholeModel)
        << path;
  }
}

void check(const Family& family, const comm::Group& world) {
  const VideoFixture fixture(family.fixture);
  const models::ModelConfig config = fixture.config(family.architecture);
  for (const SequenceScheme scheme : kSchemes) {
    if (!suits(scheme, world.size(), family.architecture)) {
      continue;
    }
    const auto sequence = make_sequence(plan_of(scheme, world.size()), world);
    if (!config.transformer.window.empty() && world.size() > config.transformer.heads) {
      const std::unique_ptr<models::Model> model = models::make_model(config);
      models::set_weights(*model, fixture, /*train=*/false);
      model->use_sequence(sequence);
      EXPECT_NE(error_of(ErrorKind::kConfig, [&] { return fixture.run(*model, "forward"); })
                    .find("attention in windows divides 2 heads among 4 ranks"),
                std::string::npos);
      continue;
    }
    struct Way {
      const char* name;
      int64_t recompute;
      bool fast;
    };
    for (const Way& way :
         {Way{"plain", 0, false}, Way{"recomputed", config.transformer.depth, false},
          Way{"fast", 0, true}}) {
      SCOPED_TRACE(std::string(to_string(scheme)) + ", " + way.name);
      const std::unique_ptr<models::Model> model = models::make_model(config);
      models::set_weights(*model, fixture, /*train=*/true);
      model->use_sequence(sequence);
      model->set_recompute(way.recompute);
      if (way.fast) {
        model->use_fast_path(
            std::make_shared<ops::BlockKernels>(ops::KernelOptions{}, at::kCPU, at::kFloat, true));
      }
      models::expect_outputs(*model, fixture);
      const at::Tensor output = fixture.run(*model, "forward");
      torch::autograd::backward({(output * fixture.tensor("forward.cotangent")).sum()}, {});
      expect_mean_gradients(*model, fixture, world);
    }
  }
}

void check_dit(const comm::Group& world) {
  const models::Fixture fixture("dit_latent.safetensors");
  const models::ModelConfig config = fixture.config();
  ASSERT_EQ(config.transformer.heads, 2);
  for (const SequenceScheme scheme : kSchemes) {
    if (!suits(scheme, world.size(), "dit")) {
      continue;
    }
    for (const bool is_fast : {false, true}) {
      SCOPED_TRACE(std::string(to_string(scheme)) + (is_fast ? ", fast" : ", plain"));
      const std::unique_ptr<models::Model> model = models::make_model(config);
      for (const auto& [path, parameter] : model->named_parameters()) {
        parameter->value = fixture.tensor("weights." + path).requires_grad_();
        parameter->grad = at::zeros_like(parameter->value);
      }
      model->use_sequence(make_sequence(plan_of(scheme, world.size()), world));
      if (is_fast) {
        model->use_fast_path(
            std::make_shared<ops::BlockKernels>(ops::KernelOptions{}, at::kCPU, at::kFloat, true));
      }
      const at::Tensor x0 = fixture.tensor("loss.x0");
      const diffusion::Objective objective = fixture.objective();
      const diffusion::NoisedBatch batch =
          models::noised(objective, x0, fixture.tensor("loss.noise"), fixture.tensor("loss.t"));
      const at::Tensor prediction =
          model->forward(batch.x_t, batch.t, {.labels = fixture.tensor("loss.labels")});
      const diffusion::Loss loss = diffusion::loss(objective, prediction, batch, x0);
      EXPECT_LT(models::relative_error(loss.per_sample, fixture.tensor("loss.loss")),
                tolerance::kWholeModel);
      torch::autograd::backward({loss.mean}, {});
      expect_mean_gradients(*model, fixture, world);
    }
  }
}

struct CachedSteps {
  std::vector<at::Tensor> outputs;
  std::vector<int64_t> left_out;  ///< blocks, until after each step
};

/// Evaluations that differ more and less, with a step cache.
CachedSteps cached_steps(const VideoFixture& fixture, const char* architecture, bool is_fast,
                         const std::shared_ptr<const nn::Sequence>& sequence) {
  const at::NoGradGuard no_grad;
  const std::unique_ptr<models::Model> model = models::make_model(fixture.config(architecture));
  models::set_weights(*model, fixture, /*train=*/false);
  model->use_sequence(sequence);
  if (is_fast) {
    model->use_fast_path(
        std::make_shared<ops::BlockKernels>(ops::KernelOptions{}, at::kCPU, at::kFloat, true));
  }
  model->use_step_cache({.kind = diffusion::StepCacheConfig::Kind::kFirstBlock, .threshold = 0.05});
  const auto cache = model->make_cache();
  CachedSteps steps;
  for (const double scale : {1.0, 0.99, -1.0, -0.99, -0.98}) {
    cache->begin({});
    steps.outputs.push_back(model->forward(scale * fixture.tensor("forward.x_t"),
                                           fixture.tensor("forward.t"),
                                           fixture.conditions("forward"), {.cache = cache.get()}));
    cache->end();
    steps.left_out.push_back(model->step_cache_use().blocks.left_out);
  }
  return steps;
}

TEST(StepCacheTest, RanksOfASequenceLeaveOutWhatOneDoes) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const VideoFixture fixture("stdit3");
    for (const bool is_fast : {false, true}) {
      const CachedSteps one =
          cached_steps(fixture, "stdit3", is_fast, std::make_shared<nn::Sequence>());
      const CachedSteps two =
          cached_steps(fixture, "stdit3", is_fast,
                       make_sequence(plan_of(SequenceScheme::kUlysses, world.size()), world));
      EXPECT_EQ(one.left_out, two.left_out);
      EXPECT_GT(one.left_out[1], one.left_out[0]);
      EXPECT_EQ(one.left_out[2], one.left_out[1]);
      for (size_t i = 0; i < one.outputs.size(); ++i) {
        EXPECT_LT(models::relative_error(two.outputs[i], one.outputs[i]), tolerance::kWholeModel)
            << "step " << i << (is_fast ? ", fast" : ", plain");
      }
    }
  });
}

TEST(DiTTest, TwoRanksMatchTheReference) {
  comm::run_on_ranks(2, check_dit);
}

TEST(DiTTest, FourRanksMatchTheReference) {
  comm::run_on_ranks(4, check_dit);
}

TEST_P(ModelsTest, TwoRanksMatchTheReference) {
  comm::run_on_ranks(2, [](const comm::Group& world) { check(GetParam(), world); });
}

TEST_P(ModelsTest, FourRanksMatchTheReference) {
  comm::run_on_ranks(4, [](const comm::Group& world) { check(GetParam(), world); });
}

INSTANTIATE_TEST_SUITE_P(All, ModelsTest,
                         testing::Values(Family{"pixart", "pixart"},
                                         Family{"pixart_sizes", "pixart"}, Family{"stdit", "stdit"},
                                         Family{"stdit2", "stdit2"}, Family{"stdit3", "stdit3"},
                                         Family{"stdit3_windows", "stdit3"}, Family{"vdit", "vdit"},
                                         Family{"latte", "latte"}),
                         [](const auto& info) { return std::string(info.param.fixture); });

}  // namespace models_test
}  // namespace kinora::parallel
