// The frozen autoencoder on a stream of its own.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <deque>

#include "kinora/data/run_data.h"
#include "kinora/inference/setup.h"
#include "kinora/train/encode_stage.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::train {
namespace gpu_encode_stage_test {

// Steps overlap as the trainer has them: the next two are begun before one is used, and the memory
// of those that are over is used again.
TEST(GpuEncodeStageTest, LatentsAreThoseOfTheCpuHoweverStepsOverlap) {
  constexpr int64_t kSteps = 30;
  RunConfig config;
  config.data.count = 100;
  config.data.height = 64;
  config.data.width = 64;
  config.train.global_batch = 32;
  config.train.micro_batch = 16;
  const data::RunData data = open_data(config.data);
  const at::Device gpu = inference::choose_device(DeviceChoice::kCuda);
  PatchAutoencoder autoencoder;
  const pipelines::LatentEncoder on_cpu(autoencoder, at::kCPU, 16);
  const pipelines::LatentEncoder on_gpu(autoencoder, gpu, 5);
  const EncodeStage cpu_stage(3, at::kCPU, {.encoder = &on_cpu});
  const EncodeStage gpu_stage(3, gpu, {.encoder = &on_gpu});
  StepLoader cpu_loader(config, {.data = data.train.get()}, {}, {}, /*pinned=*/false);
  StepLoader gpu_loader(config, {.data = data.train.get()}, {}, {}, /*pinned=*/true);
  std::deque<StepSamples> ahead;
  std::vector<at::Tensor> sums;
  for (int64_t step = 0; step < kSteps; ++step) {
    while (ahead.size() < 2) {
      ahead.push_back(gpu_loader.next());
      gpu_stage.begin(ahead.back());
    }
    const StepSamples now = std::move(ahead.front());
    ahead.pop_front();
    gpu_stage.wait(now);
    for (const data::Batch& batch : now.batches) {
      EXPECT_TRUE(batch.images.is_cuda());
      sums.push_back(batch.images * 1.0);  // read on the current stream, while the next are made
    }
  }
  size_t i = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    StepSamples expected = cpu_loader.next();
    cpu_stage.begin(expected);
    for (const data::Batch& batch : expected.batches) {
      EXPECT_TRUE(at::allclose(sums[i++].to(at::kCPU), batch.images, 1e-5, 1e-5)) << step;
    }
  }
}

// Pinned memory is libtorch's allocator's, which gives a block out again once the copies that read
// it are done.
TEST(GpuEncodeStageTest, PixelsAreCopiedAheadThroughTheSamePinnedMemory) {
  constexpr int64_t kSteps = 40;
  constexpr int64_t kWarmup = 10;
  RunConfig config;
  config.data.count = 100;
  config.data.height = 64;
  config.data.width = 64;
  config.train.global_batch = 32;
  config.train.micro_batch = 16;
  const data::RunData data = open_data(config.data);
  const at::Device gpu = inference::choose_device(DeviceChoice::kCuda);
  const EncodeStage stage(3, gpu);
  StepLoader cpu_loader(config, {.data = data.train.get()}, {}, {}, /*pinned=*/false);
  StepLoader gpu_loader(config, {.data = data.train.get()}, {}, {}, /*pinned=*/true);
  const auto pinned_allocations = [] {
    return at::getHostAllocator(at::kCUDA)->get_stats().num_host_alloc;
  };
  std::deque<StepSamples> ahead;
  int64_t after_warmup = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    while (ahead.size() < 2) {
      ahead.push_back(gpu_loader.next());
      stage.begin(ahead.back());
    }
    const StepSamples now = std::move(ahead.front());
    ahead.pop_front();
    stage.wait(now);
    const StepSamples expected = cpu_loader.next();
    for (size_t i = 0; i < now.batches.size(); ++i) {
      ASSERT_TRUE(now.batches[i].images.is_cuda());
      EXPECT_TRUE(now.batches[i].images.to(at::kCPU).equal(expected.batches[i].images)) << step;
    }
    if (step == kWarmup) {
      after_warmup = pinned_allocations();
      EXPECT_GT(after_warmup, 0);
    }
  }
  EXPECT_EQ(pinned_allocations(), after_warmup);
}

}  // namespace gpu_encode_stage_test
}  // namespace kinora::train
