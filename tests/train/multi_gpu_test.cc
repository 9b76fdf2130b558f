// Layouts of two GPUs against one GPU: streams, overlap and NCCL.
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/ops/fp8.h"
#include "kinora/train/setup.h"
#include "tests/comm/ranks.h"
#include "tests/train/boost/torch_net.h"
#include "tests/train/mixed_run.h"
#include "tests/train/tiny_families.h"
#include "tests/train/tiny_run.h"

namespace kinora::train {
namespace multi_gpu_test {

/// Calls `body` on two ranks, each with a GPU of its own.
void run_on_gpus(const std::function<void(const comm::Group& world, at::Device device)>& body) {
  comm::RankOptions options;
  options.time_limit = std::chrono::seconds(110);
  comm::run_on_ranks(
      2,
      [&body](const comm::Group& group) {
        comm::World place = group.world();
        place.store_prefix += "gpus/";
        const at::Device device = rank_device(place, DeviceChoice::kCuda);
        device::configure_computation(0, /*deterministic=*/true);
        body(comm::connect(place, device), device);
        device::synchronize(device);
      },
      options);
}

Outcome outcome_on(const RunConfig& config, const comm::Group& world, at::Device device) {
  TinyRun run(config, world, device);
  Outcome outcome;
  for (int i = 0; i < 4; ++i) {
    run.step(&outcome);
  }
  outcome.weights = run.all(optim::Role::master()).cpu();
  return outcome;
}

struct Layout {
  std::string name;
  std::function<void(RunConfig&)> set;
};

/// Losses, norms and weights of a run on two GPUs, divided in every way, are those of one.
void expect_layouts_equal_one(RunConfig config, const comm::Group& world, at::Device device) {
  config.model = models::resolved(config.model);
  config.path = inference::Path::kFast;
  config.ema_decays = {};
  config.train.micro_batch = 2;
  config.train.device = DeviceChoice::kCuda;
  const Outcome want = outcome_on(config, {}, device);
  using Schedule = parallel::PipelineSchedule;
  const std::vector<Layout> layouts = {
      {"tensor", [](RunConfig& c) { c.parallel.tp_size = 2; }},
      {"tensor with divided norms",
       [](RunConfig& c) {
         c.parallel.tp_size = 2;
         c.parallel.divided_norms = true;
       }},
      {"sequence", [](RunConfig& c) { c.parallel.sp_size = 2; }},
      {"pipeline", [](RunConfig& c) { c.parallel.pp_size = 2; }},
      {"pipeline in chunks",
       [](RunConfig& c) {
         c.parallel.pp_size = 2;
         c.parallel.pp_chunks = 3;
       }},
      {"zero bubble",
       [](RunConfig& c) {
         c.parallel.pp_size = 2;
         c.parallel.pp_schedule = Schedule::kZeroBubble;
       }},
      {"zero3", [](RunConfig& c) { c.parallel.zero_stage = 3; }},
      {"zero2 with weights at the host",
       [](RunConfig& c) {
         c.parallel.zero_stage = 2;
         c.optim.offload = 1.0;
         c.optim.offload_weights = 1.0;
       }},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    std::cerr << layout.name << '\n';  // shown where the ranks do not end
    RunConfig divided = config;
    layout.set(divided);
    const Outcome got = outcome_on(divided, world, device);
    // fp32 products may use TF32.
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << "step " << i;
      EXPECT_NEAR(got.norms[i], want.norms[i], 2e-2 * want.norms[i]) << "step " << i;
    }
    EXPECT_TRUE(at::allclose(got.weights, want.weights, 0.0, 5e-3));
  }
}

TEST(MultiGpuTrainingTest, EveryLayoutOfTwoEqualsOne) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "needs 2 GPUs, there are " << cuda_device_count();
  }
  run_on_gpus([](const comm::Group& world, at::Device device) {
    RunConfig config = tiny();
    config.model.transformer.hidden = 64;
    expect_layouts_equal_one(config, world, device);
  });
}

TEST(MultiGpuTrainingTest, EveryLayoutOfTwoEqualsOneWithBranchesWithoutGates) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "needs 2 GPUs, there are " << cuda_device_count();
  }
  run_on_gpus([](const comm::Group& world, at::Device device) {
    for (const char* family : {"pixart", "wan"}) {
      SCOPED_TRACE(family);
      RunConfig config = tiny_of(family);
      config.model.transformer.depth = 6;
      config.model.transformer.hidden = 64;
      expect_layouts_equal_one(config, world, device);
    }
  });
}

// Weights that ranks divide are quantised for a block at a time, with the scales of whole ones: the
// arithmetic is that of ranks that have all, but for the last bit of the norm that clips. A change
// of that bit alone moves the U-Net's losses by up to 4e-4 in three steps, its norms by 1.5e-3 and
// its weights by 5e-5, since a last bit can move a tensor's scale, and so all its 8-bit roundings.
TEST(MultiGpuTrainingTest, DividedWeightsInFp8EqualWholeOnes) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "needs 2 GPUs, there are " << cuda_device_count();
  }
  if (!ops::Fp8::possible(at::Device(at::kCUDA, 0))) {
    GTEST_SKIP() << "needs GPUs with fp8 products";
  }
  run_on_gpus([](const comm::Group& world, at::Device device) {
    for (const std::string family : {"dit", "unet"}) {
      for (const auto scaling : {ops::Fp8Scaling::kDelayed, ops::Fp8Scaling::kCurrent}) {
        RunConfig config = tiny_in_fp8(family);
        config.ema_decays = {};
        config.train.device = DeviceChoice::kCuda;
        config.train.fp8_scaling = scaling;
        config.deterministic = true;                   // else products are chosen by timing
        config.kernels.attention = ops::Switch::kOff;  // else chosen by timing
        const Outcome want = outcome_on(config, world, device);
        config.parallel.zero_stage = 3;
        const double tolerance = family == "dit" ? 1e-5 : 1e-3;
        for (const double far : {0.0, 1.0}) {
          SCOPED_TRACE(testing::Message() << family << ", scaling " << static_cast<int>(scaling)
                                          << ", at the host " << far);
          config.optim.offload = far;
          config.optim.offload_weights = far;
          const Outcome got = outcome_on(config, world, device);
          for (size_t i = 0; i < want.losses.size(); ++i) {
            EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << "step " << i;
            EXPECT_NEAR(got.norms[i], want.norms[i], 10 * tolerance * want.norms[i])
                << "step " << i;
          }
          EXPECT_TRUE(at::allclose(got.weights, want.weights, 0.0, tolerance));
        }
      }
    }
  });
}

TEST(MultiGpuTrainingTest, SizesWithRanksOfTheirOwnEqualOneGpu) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "needs 2 GPUs, there are " << cuda_device_count();
  }
  run_on_gpus([](const comm::Group& world, at::Device device) {
    RunConfig config = tiny_video("stdit3");
    config.model.transformer.hidden = 128;
    config.model = models::resolved(config.model);
    config.model.num_classes = 1;
    config.path = inference::Path::kFast;
    config.train.device = DeviceChoice::kCuda;
    const Outcome want = MixedRun(config, {}, device).outcome({});
    config.dynamic_sequence = true;
    config.parallel.sp_size = 2;
    for (const int stage : {0, 1}) {
      SCOPED_TRACE("stage " + std::to_string(stage));
      config.parallel.zero_stage = stage;
      // One on both, the others on one each.
      const Outcome got = MixedRun(config, world, device)
                              .outcome({{0, 0, 2}, {3, 1, 1}, {2, 0, 1}, {1, 1, 1}, {4, 1, 1}});
      // fp32 products may use TF32.
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << "step " << i;
        EXPECT_NEAR(got.norms[i], want.norms[i], 2e-2 * want.norms[i]) << "step " << i;
      }
      EXPECT_TRUE(at::allclose(got.weights.cpu(), want.weights.cpu(), 0.0, 5e-3));
    }
  });
}

TEST(MultiGpuTrainingTest, ATorchModuleLearnsByZero3AsOnOneGpu) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "needs 2 GPUs, there are " << cuda_device_count();
  }
  run_on_gpus([](const comm::Group& world, at::Device device) {
    BoosterOptions options = fp32();
    options.device = DeviceChoice::kCuda;
    const auto losses = [&](const comm::Group& ranks, double offload) {
      Net net;
      const optim::OptimizerConfig optimizer{
          .eps = 1e-3, .offload = offload, .offload_weights = offload};
      const Booster booster(options, ranks);
      TorchModuleOptions module = booster.module_options(optimizer);
      module.bucket_bytes = 100;
      Boosted boosted = booster.boost(torch_module(net, module), optimizer, constant());
      std::vector<float> found;
      for (const optim::StepResult& result :
           train(net, boosted, 4 / ranks.size(), ranks.size(), ranks.rank(), 2)) {
        found.push_back(result.loss);
      }
      return found;
    };
    const std::vector<float> want = losses({}, 0.0);
    EXPECT_LT(want.back(), 0.9F * want.front());
    const auto expect_close = [&want](const std::vector<float>& got) {
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got[i], want[i], 5e-3 * want[i]) << "step " << i;
      }
    };
    expect_close(losses({}, 1.0));
    options.plugin = "zero3";
    expect_close(losses(world, 0.0));
    expect_close(losses(world, 1.0));
    device::synchronize(device);
  });
}

}  // namespace multi_gpu_test
}  // namespace kinora::train
