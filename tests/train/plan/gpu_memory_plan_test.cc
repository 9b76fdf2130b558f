// Plans against the peaks of real steps on this GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/device/device.h"
#include "kinora/ops/fp8.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/benchmark_step.h"
#include "kinora/train/plan/memory_plan.h"
#include "tests/places.h"

namespace kinora::train {
namespace gpu_memory_plan_test {

struct Setting {
  const char* recipe;
  std::vector<std::string> overrides;
};

TEST(GpuMemoryPlanTest, IsWithinFivePercentOfThePeak) {
  if (!device::best_device().is_cuda()) {
    GTEST_SKIP() << "there is no GPU";
  }
  const at::Device gpu(at::kCUDA, 0);
  const std::string batch = "train.global_batch=64";
  const std::string micro = "train.micro_batch=64";
  std::vector<Setting> settings = {
      {"imagenet-256-dit-s2", {batch, micro}},
      {"imagenet-256-dit-s2", {batch, micro, "train.recompute=elementwise"}},
      {"imagenet-256-dit-s2", {batch, micro, "train.recompute=mlp"}},
      {"imagenet-256-dit-s2", {batch, micro, "train.recompute=block"}},
      {"imagenet-256-dit-s2", {batch, micro, "train.recompute=block:6,mlp"}},
      {"imagenet-256-dit-s2", {batch, micro, "train.recompute=offload:4,block:4,mlp"}},
      {"imagenet-256-dit-s2", {batch, "train.micro_batch=32"}},
      {"imagenet-256-dit-s2", {batch, micro, "model.path=plain"}},
      {"imagenet-256-dit-s2", {batch, micro, "train.precision=fp32"}},
      {"moving-shapes-stdit", {"train.global_batch=16"}},
      {"moving-shapes-stdit", {"train.global_batch=16", "train.recompute=block"}},
      {"moving-shapes-stdit", {"train.global_batch=16", "model.path=plain"}},
  };
  if (ops::Fp8::possible(gpu)) {
    settings.push_back({"imagenet-256-dit-s2", {batch, micro, "train.fp8=true"}});
  }
  for (const auto& [recipe, overrides] : settings) {
    const std::string path = source_path("configs/").string() + recipe + ".yaml";
    const auto config = load_config<RunConfig>(path, overrides);
    // Steps before have left cuBLAS's workspace of each of their streams, and of the one that they
    // share, which counts for these, too.
    constexpr int64_t kWorkspace = int64_t{64} << 20;
    start_memory_anew(gpu);
    const int64_t left = std::max<int64_t>(0, device::peak_memory(gpu) - kWorkspace);
    const auto measured =
        static_cast<double>(benchmark_step(config, {.warmup = 4, .steps = 2}).peak_memory - left);
    std::vector<std::string> assumed;
    const MemoryPlan plan =
        plan_memory(without_data(config, assumed), {.device = c10::DeviceType::CUDA});
    double planned = 0.0;
    for (const MemoryPart& part : plan.parts) {  // steps alone take no checkpoints
      planned +=
          part.name == "more for a checkpoint's copy" ? 0.0 : static_cast<double>(part.bytes);
    }
    EXPECT_NEAR(planned / measured, 1.0, 0.05)
        << recipe << " " << testing::PrintToString(overrides) << ": planned " << planned
        << ", measured " << measured;
  }
}

}  // namespace gpu_memory_plan_test
}  // namespace kinora::train
