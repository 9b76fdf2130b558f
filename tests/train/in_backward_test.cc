// Updates during backward (optim.in_backward), against those after it: the same weights.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "kinora/train/plan/memory_plan.h"
#include "kinora/train/self_test.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/boost/torch_net.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace in_backward_test {

using testing::HasSubstr;

RunConfig without_clipping(RunConfig config) {
  config.optim.max_grad_norm = 0.0;
  return config;
}

RunConfig in_backward(RunConfig config) {
  config.optim.in_backward = true;
  return config;
}

/// The norm is a sum in another order.
void expect_the_same_weights(const RunConfig& config, const comm::Group& world) {
  const Outcome want = outcome_of(config, world);
  const Outcome got = outcome_of(in_backward(config), world);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_TRUE(at::equal(got.weights, want.weights));
  EXPECT_TRUE(at::equal(got.averages, want.averages));
  for (size_t i = 0; i < want.norms.size(); ++i) {
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-6 * want.norms[i]);
  }
}

TEST(InBackwardTest, EveryWayOfComputingGivesTheSameWeights) {
  for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
    for (RunConfig config : {tiny(), tiny_video("stdit"), tiny_unet()}) {
      config = without_clipping(config);
      config.path = path;
      SCOPED_TRACE(config.model.architecture + (path == inference::Path::kFast ? ", fast" : ""));
      expect_the_same_weights(config, {});
    }
  }
  RunConfig config = without_clipping(tiny());
  config.path = inference::Path::kFast;
  config.train.recompute = "block";
  config.precision = Precision::kBf16;
  expect_the_same_weights(config, {});
  config.optim.masters = kernels::MasterFormat::kBF16;
  config.optim.moments = kernels::MomentFormat::k8Bit;
  expect_the_same_weights(config, {});
  config.optim.offload = 1.0;
  config.optim.offload_weights = 1.0;
  expect_the_same_weights(config, {});
}

TEST(InBackwardTest, EveryRuleOfOnePassGivesTheSameWeights) {
  for (const kernels::UpdateRule rule : {kernels::UpdateRule::kLion, kernels::UpdateRule::kSgd,
                                         kernels::UpdateRule::kScheduleFree}) {
    RunConfig config = without_clipping(tiny());
    config.optim.rule = rule;
    SCOPED_TRACE(optim::to_string(rule));
    expect_the_same_weights(config, {});
  }
}

TEST(InBackwardTest, RanksGiveTheSameWeights) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = without_clipping(tiny());
    for (const int64_t stage : {0, 1, 2, 3}) {
      SCOPED_TRACE("ZeRO-" + std::to_string(stage));
      config.parallel.zero_stage = stage;
      expect_the_same_weights(config, world);
    }
    config.parallel.zero_stage = -1;
    config.parallel.sp_size = 1;
    config.parallel.reduce_type = Precision::kBf16;
    expect_the_same_weights(config, world);
  });
}

// And one more where updates go on beside backward, if it has as many buckets.
TEST(InBackwardTest, GradientsOfARingTakeTwoBuffers) {
  for (const double offload : {0.0, 1.0}) {
    RunConfig config = in_backward(without_clipping(tiny()));
    config.optim.offload = offload;
    TinyRun run(config, {});
    const optim::Arena& arena = run.trainable.arena();
    struct Ring {
      int64_t buckets = 0;
      int64_t largest = 0;
    };
    int64_t expected = 0;
    std::map<std::string, Ring> rings;
    for (const optim::Bucket& bucket : arena.buckets()) {
      if (bucket.ring.empty()) {
        expected += bucket.numel;
      } else {
        Ring& ring = rings[bucket.ring];
        ++ring.buckets;
        ring.largest = std::max(ring.largest, bucket.numel);
      }
    }
    for (const auto& [name, ring] : rings) {
      expected += std::min<int64_t>(offload > 0.0 ? 3 : 2, ring.buckets) * ring.largest;
    }
    EXPECT_EQ(arena.bytes(optim::Role::grad()), 4 * expected) << offload;
  }
}

TEST(InBackwardTest, ATorchModuleLearnsTheSame) {
  const auto trained = [](bool within, const BoosterOptions& options) {
    Net net;
    const Booster booster(options);
    TorchModuleOptions module = booster.module_options();
    module.bucket_bytes = 100;
    optim::OptimizerConfig optimizer = adamw();
    optimizer.in_backward = within;
    Boosted boosted = booster.boost(torch_module(net, module), optimizer, constant());
    const auto results = train(net, boosted, 1);
    EXPECT_GT(results.front().loss, results.back().loss);
    const at::NoGradGuard no_grad;
    return loss_of(net, 3);
  };
  EXPECT_TRUE(at::equal(trained(true, fp32()), trained(false, fp32())));
}

TEST(InBackwardTest, GradientsThatAreNotFiniteEndTheRun) {
  Net net;
  optim::OptimizerConfig optimizer = adamw();
  optimizer.in_backward = true;
  Boosted boosted = Booster(fp32()).boost(net, optimizer, constant());
  boosted.backward(loss_of(net, 0));
  EXPECT_FALSE(boosted.step().skipped);
  boosted.backward((loss_of(net, 1) * 0.0).sqrt());  // 0, and its derivative is not a number
  EXPECT_THAT(error_of(ErrorKind::kDiverged, [&] { return boosted.step().loss; }),
              HasSubstr("gradients are not finite (the loss is 0)"));
}

TEST(InBackwardTest, TheSelfTestReadsMoments) {
  RunConfig config = in_backward(without_clipping(tiny()));
  for (const auto format : {kernels::MomentFormat::kF32, kernels::MomentFormat::k8Bit}) {
    config.optim.moments = format;
    TinyRun run(config, {});
    const auto parameters = run.trainable.model().named_parameters();
    SelfTest test(parameters, run.trainable.arena());
    const auto finish = [&] {
      test.see_moments(run.trainable.arena());
      test.finish(run.trainable.arena(), SelfTest::SmallSteps::kStop);
      return 0;
    };
    EXPECT_THAT(error_of(ErrorKind::kDiverged, finish), HasSubstr("had no gradient"));
    Outcome outcome;
    run.step(&outcome);
    EXPECT_EQ(finish(), 0);
  }
}

TEST(InBackwardTest, RefusesWhatNeedsAllGradientsFirst) {
  const auto refusal = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = in_backward(without_clipping(tiny()));
    change(config);
    return error_of(ErrorKind::kConfig, [&config] { return outcome_of(config, {}).losses; });
  };
  EXPECT_THAT(refusal([](RunConfig& config) { config.optim.max_grad_norm = 1.0; }),
              HasSubstr("Hint: optim.max_grad_norm=0"));
  EXPECT_THAT(refusal([](RunConfig& config) { config.train.micro_batch = 2; }),
              HasSubstr("which several micro-batches would add up"));
  EXPECT_THAT(refusal([](RunConfig& config) { config.precision = Precision::kFp16; }),
              HasSubstr("Hint: optim.in_backward=false, or train.precision=bf16"));
  EXPECT_THAT(refusal([](RunConfig& config) { config.optim.rule = kernels::UpdateRule::kLamb; }),
              HasSubstr("needs all gradients before the first update"));
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = in_backward(without_clipping(tiny()));
    config.parallel.tp_size = 2;
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return outcome_of(config, world).losses; }),
                HasSubstr("ranks that divide the model"));
    world.barrier();
  });
}

}  // namespace in_backward_test
}  // namespace kinora::train
