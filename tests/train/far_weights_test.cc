// Weights and gradients in the host's memory (optim.offload_weights), against those on the device:
// the same bits.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/train/plan/memory_plan.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/train/boost/torch_net.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace far_weights_test {

using testing::HasSubstr;

Outcome outcome(const RunConfig& config, const comm::Group& world, double share) {
  RunConfig far = config;
  far.optim.offload = share;
  far.optim.offload_weights = share;
  return outcome_of(far, world);
}

void expect_the_same_bits(const RunConfig& config, const comm::Group& world) {
  const Outcome want = outcome_of(config, world);
  for (const double share : {0.5, 1.0}) {
    SCOPED_TRACE("share " + std::to_string(share));
    const Outcome got = outcome(config, world, share);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    EXPECT_TRUE(at::equal(got.weights, want.weights));
    EXPECT_TRUE(at::equal(got.averages, want.averages));
  }
}

TEST(FarWeightsTest, EveryWayOfComputingGivesTheSameBits) {
  for (const inference::Path path : {inference::Path::kPlain, inference::Path::kFast}) {
    for (RunConfig config : {tiny(), tiny_video("stdit"), tiny_unet()}) {
      config.path = path;
      SCOPED_TRACE(config.model.architecture + (path == inference::Path::kFast ? ", fast" : ""));
      for (const int64_t micro_batch : {0, 2}) {
        config.train.micro_batch = micro_batch;
        expect_the_same_bits(config, {});
      }
    }
  }
  RunConfig config = tiny();
  config.path = inference::Path::kFast;
  config.train.recompute = "block";
  config.precision = Precision::kBf16;
  expect_the_same_bits(config, {});
  config.optim.masters = kernels::MasterFormat::kBF16;
  config.optim.moments = kernels::MomentFormat::k8Bit;
  expect_the_same_bits(config, {});
  config = tiny();
  config.optim.rule = kernels::UpdateRule::kAdafactor;
  expect_the_same_bits(config, {});
}

TEST(FarWeightsTest, RanksGiveTheSameBits) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = tiny();
    config.train.micro_batch = 2;
    config.optim.max_grad_norm = 0.0;  // the norm is summed in another order
    for (const int64_t stage : {0, 1, 2, 3}) {
      SCOPED_TRACE("ZeRO-" + std::to_string(stage));
      config.parallel.zero_stage = stage;
      // Of what is reduced once a step and what after each micro-batch the sums differ.
      config.train.micro_batch = stage >= 2 ? 2 : 0;
      expect_the_same_bits(config, world);
    }
  });
}

TEST(FarWeightsTest, ATorchModuleLearnsTheSame) {
  const auto trained = [](const BoosterOptions& options) {
    Net net;
    const Booster booster(options);
    TorchModuleOptions module = booster.module_options(booster.placed(adamw(), 1));
    module.bucket_bytes = 100;
    Boosted boosted = booster.boost(torch_module(net, module), adamw(), constant());
    const auto results = train(net, boosted, 2);
    EXPECT_GT(results.front().loss, results.back().loss);
    EXPECT_EQ(boosted.arena().buckets().back().is_far, options.plugin == "gemini");
    const at::NoGradGuard no_grad;
    return loss_of(net, 3);
  };
  BoosterOptions gemini = fp32();
  gemini.plugin = "gemini";
  gemini.plugin_config.placement = Placement::kCpu;
  EXPECT_TRUE(at::equal(trained(gemini), trained(fp32())));
}

TEST(FarWeightsTest, GeminiPlacesWhatDoesNotFit) {
  BoosterOptions options;
  options.plugin = "gemini";
  constexpr int64_t kParameters = 1'000'000'000;
  constexpr int64_t kGiB = int64_t{1} << 30;
  const auto shares = [&](int64_t ranks, int64_t gib) {
    const optim::OptimizerConfig config = placed(options, {}, kParameters, ranks, gib * kGiB);
    return std::pair(config.offload, config.offload_weights);
  };
  options.plugin_config.offload_optim_frac = 0.5;
  options.plugin_config.offload_param_frac = 0.25;
  EXPECT_EQ(shares(1, 80), std::pair(0.5, 0.25));
  options.plugin_config.placement = Placement::kCpu;
  EXPECT_EQ(shares(1, 80), std::pair(1.0, 1.0));
  options.plugin_config.placement = Placement::kAuto;
  EXPECT_EQ(shares(1, 80), std::pair(0.0, 0.0));  // 18 GB of 48 GiB
  EXPECT_EQ(shares(2, 16), std::pair(0.0, 0.0));  // 9 GB of 9.6 GiB
  const auto [state, none] = shares(1, 24);
  EXPECT_NEAR(state, (18.0 - 0.6 * 24 * 1.073741824) / 12.0, 1e-6);
  EXPECT_EQ(none, 0.0);
  const auto [all, weights] = shares(1, 6);
  EXPECT_EQ(all, 1.0);
  EXPECT_NEAR(weights, 1.0 - 0.6 * 6 * 1.073741824 / 6.0, 1e-6);

  const auto refusal = [](BoosterOptions wrong) {
    return error_of(ErrorKind::kConfig, [&wrong] { return placed(wrong, {}, 1, 1, 1).offload; });
  };
  options.plugin_config = {.offload_param_frac = 0.5};
  EXPECT_THAT(refusal(options), HasSubstr("must be at most offload_optim_frac"));
  options.plugin = "zero3";
  EXPECT_THAT(refusal(options), HasSubstr("are of plugin gemini"));
}

TEST(FarWeightsTest, RefusesWhatNeedsThemThere) {
  const auto refusal = [](double offload, double weights) {
    RunConfig config = tiny();
    config.optim.offload = offload;
    config.optim.offload_weights = weights;
    return error_of(ErrorKind::kConfig, [&config] { return outcome_of(config, {}).losses; });
  };
  EXPECT_THAT(refusal(0.5, 0.6), HasSubstr("must be in [0, 0.5]"));
  comm::run_on_ranks(2, [](const comm::Group& world) {
    RunConfig config = tiny();
    config.optim.offload = 1.0;
    config.optim.offload_weights = 1.0;
    config.parallel.pp_size = 2;
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return outcome_of(config, world).losses; }),
                HasSubstr("(parallel.pipeline, pp_size) has several under way"));
    world.barrier();
  });
}

}  // namespace far_weights_test
}  // namespace kinora::train
