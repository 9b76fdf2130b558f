#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kinora/device/device.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace gpu_far_weights_test {

// Weights come and gradients go beside the computation: the bits are those of a run that has all on
// the GPU.
TEST(GpuFarWeightsTest, GiveTheSameBits) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const std::string family : {"dit", "unet"}) {
    for (const int64_t micro_batch : {0, 2}) {
      SCOPED_TRACE(family + ", micro-batch " + std::to_string(micro_batch));
      RunConfig config = family == "dit" ? tiny() : tiny_unet();
      config.precision = Precision::kBf16;
      config.path = family == "dit" ? inference::Path::kFast : inference::Path::kPlain;
      config.train.device = DeviceChoice::kCuda;
      config.train.micro_batch = micro_batch;
      config.kernels.attention = ops::Switch::kOff;  // else chosen by timing, for each model anew
      const auto outcome = [&config](double share) {
        config.optim.offload = share;
        config.optim.offload_weights = share;
        TinyRun run(config, {}, device::best_device());
        Outcome result;
        for (int i = 0; i < 4; ++i) {
          run.step(&result);
        }
        result.weights = run.all(optim::Role::master());
        return result;
      };
      const Outcome want = outcome(0.0);
      for (const double share : {0.5, 1.0}) {
        const Outcome got = outcome(share);
        EXPECT_EQ(got.losses, want.losses) << share;
        EXPECT_EQ(got.norms, want.norms) << share;
        EXPECT_TRUE(at::equal(got.weights, want.weights)) << share;
      }
    }
  }
}

}  // namespace gpu_far_weights_test
}  // namespace kinora::train
