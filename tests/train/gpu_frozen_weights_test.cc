#include <gtest/gtest.h>

#include "kinora/device/device.h"
#include "kinora/ops/fp8.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"
#include "tests/train/frozen_weights.h"

namespace kinora::train {
namespace gpu_frozen_weights_test {

using inference::FrozenWeights;

/// A tiny model of sizes that kernels have, on the fast path.
RunConfig of_kernels(const std::string& family, const char* recompute) {
  RunConfig config = family == "dit" ? tiny() : tiny_unet();
  if (family == "dit") {
    config.model.transformer.hidden = 64;
  } else {
    models::set_small_network(config.model, 0, 64, 2);
  }
  config.model.height = 16;
  config.model.width = 16;
  config.model = models::resolved(config.model);
  config.precision = Precision::kBf16;
  config.path = inference::Path::kFast;
  config.train.recompute = recompute;
  config.train.device = DeviceChoice::kCuda;
  config.kernels.attention = ops::Switch::kOff;  // else chosen by timing, for each model anew
  return config;
}

/// Those of `run` are those of a model by `config` with the weights that its own stand for.
void expect_gradients_of_values(TinyRun& run, const RunConfig& config) {
  TinyRun full(config, {}, device::best_device());
  load_values(run, full);
  const auto got = gradients_of(run);
  const auto want = gradients_of(full);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [path, gradient] : want) {
    EXPECT_LT(ops::relative_error(got.at(path), gradient), tolerance::kWholeModelInBf16) << path;
  }
}

// On a GPU the fast path computes updates inside of the products, with room beside the weights: of
// ranks that kernels have, of queries, keys and values joined, and of what is computed again.
TEST(GpuFrozenWeightsTest, GradientsOfUpdatesAreThoseOverWhatTheyStandFor) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const std::string family : {"dit", "unet"}) {
    for (const char* recompute : {"none", "block"}) {
      for (const auto& [frozen, offload] : {std::pair{FrozenWeights::kInt8, 0.0},
                                            {FrozenWeights::kFp8, 0.0},
                                            {FrozenWeights::kNf4, 0.0},
                                            {FrozenWeights::kNf4, 0.5},
                                            {FrozenWeights::kFull, 0.5},
                                            {FrozenWeights::kFull, 1.0}}) {
        SCOPED_TRACE(family + ", " + recompute + ", " + std::to_string(offload));
        RunConfig config = of_kernels(family, recompute);
        config.finetune.lora.targets = {"*blocks.*"};
        config.finetune.lora.rank = 8;
        RunConfig few_bits = config;
        few_bits.finetune.frozen_weights = frozen;
        few_bits.finetune.offload = offload;
        TinyRun run(few_bits, {}, device::best_device());
        load_random(run, 0.05);
        expect_gradients_of_values(run, config);
      }
    }
  }
}

// Frozen weights are quantised when they are in their room, forward and backward.
TEST(GpuFrozenWeightsTest, GradientsInFp8AreThoseOverWhatTheyStandFor) {
  const at::Device device = device::best_device();
  if (!device.is_cuda() || !ops::Fp8::possible(device)) {
    GTEST_SKIP() << "there is no GPU with fp8 products";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const std::string family : {"dit", "unet"}) {
    for (const char* recompute : {"none", "block"}) {
      for (const auto& [frozen, offload] :
           {std::pair{FrozenWeights::kNf4, 0.0}, {FrozenWeights::kFull, 1.0}}) {
        SCOPED_TRACE(family + ", " + recompute + ", " + std::to_string(offload));
        RunConfig config = of_kernels(family, recompute);
        config.train.fp8 = true;
        config.train.fp8_scaling = ops::Fp8Scaling::kCurrent;  // in fp8 from the first step on
        config.finetune.lora.targets = {"*blocks.*"};
        config.finetune.lora.rank = 8;
        RunConfig few_bits = config;
        few_bits.finetune.frozen_weights = frozen;
        few_bits.finetune.offload = offload;
        TinyRun run(few_bits, {}, device);
        load_random(run, 0.05);
        expect_gradients_of_values(run, config);
      }
    }
  }
}

// Where updates of attention alone are trained, the host makes what modulates blocks.
TEST(GpuFrozenWeightsTest, GradientsAreTheSameWithModulationMadeByTheHost) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  device::configure_computation(0, /*deterministic=*/true);
  for (const char* recompute : {"none", "block"}) {
    for (const FrozenWeights frozen :
         {FrozenWeights::kFull, FrozenWeights::kInt8, FrozenWeights::kFp8}) {
      SCOPED_TRACE(std::string(recompute) + ", " + std::to_string(static_cast<int>(frozen)));
      RunConfig config = of_kernels("dit", recompute);
      config.finetune.lora.targets = {"*.attn.*"};
      config.finetune.lora.rank = 8;
      RunConfig at_host = config;
      at_host.finetune.frozen_weights = frozen;
      at_host.finetune.offload = 0.6;
      TinyRun run(at_host, {}, device::best_device());
      load_random(run, 0.05);
      int64_t staying = 0;
      for (const auto& [path, parameter] : run.trainable.model().named_parameters()) {
        staying += parameter->at_host ? 1 : 0;
      }
      EXPECT_GT(staying, 0);
      expect_gradients_of_values(run, config);
    }
  }
}

}  // namespace gpu_frozen_weights_test
}  // namespace kinora::train
