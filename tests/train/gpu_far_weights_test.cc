#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <string>

#include "kinora/device/device.h"
#include "kinora/ops/fp8.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace gpu_far_weights_test {

/// Four steps with that share of state and weights at the host.
Outcome outcome_of(RunConfig config, double share) {
  config.optim.offload = share;
  config.optim.offload_weights = share;
  TinyRun run(config, {}, device::best_device());
  Outcome result;
  for (int i = 0; i < 4; ++i) {
    run.step(&result);
  }
  result.weights = run.all(optim::Role::master());
  return result;
}

/// Losses, norms and weights are those of a run that has all on the GPU. Gradients of several
/// micro-batches are summed in another order, since a product that adds to what is there may sum as
/// another one than that which writes.
void expect_same_with_far_weights(RunConfig config) {
  config.precision = Precision::kBf16;
  config.train.device = DeviceChoice::kCuda;
  config.deterministic = true;                   // else products are chosen by timing
  config.kernels.attention = ops::Switch::kOff;  // else chosen by timing, for each model anew
  const Outcome want = outcome_of(config, 0.0);
  for (const double share : {0.5, 1.0}) {
    const Outcome got = outcome_of(config, share);
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-6 * want.losses[i]) << share;
      EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]) << share;
    }
    EXPECT_TRUE(at::allclose(got.weights, want.weights, 0.0, 1e-6)) << share;
    EXPECT_TRUE(config.train.micro_batch > 0 || at::equal(got.weights, want.weights)) << share;
  }
}

// Weights come and gradients go beside the computation.
TEST(GpuFarWeightsTest, LearnTheSame) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const std::string family : {"dit", "unet"}) {
    for (const int64_t micro_batch : {0, 2}) {
      SCOPED_TRACE(family + ", micro-batch " + std::to_string(micro_batch));
      RunConfig config = family == "dit" ? tiny() : tiny_unet();
      config.path = family == "dit" ? inference::Path::kFast : inference::Path::kPlain;
      config.train.micro_batch = micro_batch;
      expect_same_with_far_weights(config);
    }
  }
}

// Weights are quantised when they are there, forward and backward, in place of once a step.
TEST(GpuFarWeightsTest, LearnTheSameInFp8) {
  const at::Device device = device::best_device();
  if (!device.is_cuda() || !ops::Fp8::possible(device)) {
    GTEST_SKIP() << "there is no GPU with fp8 products";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const std::string family : {"dit", "unet"}) {
    for (const auto scaling : {ops::Fp8Scaling::kDelayed, ops::Fp8Scaling::kCurrent}) {
      for (const std::string recompute : {"none", "block"}) {
        for (const int64_t micro_batch : {0, 2}) {
          SCOPED_TRACE(testing::Message() << family << ", scaling " << static_cast<int>(scaling)
                                          << ", " << recompute << ", micro-batch " << micro_batch);
          RunConfig config = tiny_in_fp8(family);
          config.train.fp8_scaling = scaling;
          config.train.recompute = recompute;
          config.train.micro_batch = micro_batch;
          expect_same_with_far_weights(config);
        }
      }
    }
  }
}

// Each block's update begins when its gradients are there, on the GPU, over the link or by the
// host.
TEST(GpuFarWeightsTest, UpdatesInBackwardLearnTheSame) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const std::string family : {"dit", "unet"}) {
    RunConfig config = family == "dit" ? tiny() : tiny_unet();
    config.precision = Precision::kBf16;
    config.path = family == "dit" ? inference::Path::kFast : inference::Path::kPlain;
    config.train.device = DeviceChoice::kCuda;
    config.deterministic = true;
    config.kernels.attention = ops::Switch::kOff;
    config.optim.max_grad_norm = 0.0;
    const auto outcome = [&config](bool in_backward, double offload, double weights, bool graphs) {
      config.optim.in_backward = in_backward;
      config.optim.offload = offload;
      config.optim.offload_weights = weights;
      TinyRun run(config, {}, device::best_device(), graphs);
      Outcome result;
      for (int i = 0; i < 6; ++i) {
        run.step(&result);
      }
      result.weights = run.all(optim::Role::master());
      return result;
    };
    const Outcome want = outcome(false, 0.0, 0.0, false);
    struct Way {
      double offload;
      double weights;
      bool graphs;
    };
    for (const auto& [offload, weights, graphs] :
         {Way{0.0, 0.0, false}, Way{0.0, 0.0, true}, Way{0.5, 0.0, false}, Way{1.0, 0.0, false},
          Way{1.0, 0.5, false}, Way{1.0, 1.0, false}}) {
      SCOPED_TRACE(testing::Message() << family << ", " << offload << " and " << weights
                                      << (graphs ? ", recorded" : ""));
      const Outcome got = outcome(true, offload, weights, graphs);
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 1e-6 * want.losses[i]);
        EXPECT_NEAR(got.norms[i], want.norms[i], 1e-5 * want.norms[i]);
      }
      EXPECT_TRUE(at::equal(got.weights, want.weights))
          << (got.weights - want.weights).abs().max().item<double>();
    }
  }
}

}  // namespace gpu_far_weights_test
}  // namespace kinora::train
