// What a trace of a GPU sees, and what it proves of the training step and of the benchmarks.

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kinora/core/error.h"
#include "kinora/device/device.h"
#include "kinora/device/gpu_trace.h"
#include "kinora/device/graph.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/benchmark_sample.h"
#include "kinora/train/bench/benchmark_step.h"

namespace kinora::train {
namespace gpu_trace_test {

class GpuTraceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device::best_device().is_cuda()) {
      GTEST_SKIP() << "there is no GPU";
    }
  }
};

RunConfig small_dit() {
  RunConfig config;
  config.model.transformer.depth = 2;
  config.model.transformer.hidden = 128;
  config.model.transformer.heads = 2;
  config.model.transformer.patch = 2;
  config.model.in_channels = 4;
  config.model.height = 16;
  config.model.width = 16;
  config.model.num_classes = 10;
  config.precision = Precision::kBf16;
  config.train.global_batch = 8;
  config.optim.max_grad_norm = 1.0;
  return config;
}

int64_t launches_of(const device::GpuProfile& profile, device::KernelClass kind) {
  int64_t launches = 0;
  for (const device::ClassTotal& total : profile.classes) {
    launches += total.kind == kind ? total.launches : 0;
  }
  return launches;
}

std::string waits_of(const device::GpuProfile& profile) {
  std::string text;
  for (const auto& [call, count] : profile.waits) {
    text += call + " x " + std::to_string(count) + ", ";
  }
  return text;
}

TEST_F(GpuTraceTest, SeesKernelsInsideOfGraphs) {
  const at::Tensor x = at::zeros({1 << 20}, at::device(at::kCUDA).dtype(at::kFloat));
  const auto work = [&x] { at::Tensor(x).add_(1.0).mul_(0.5).add_(2.0); };
  work();
  device::Graph graph;
  graph.record(work);
  graph.replay();
  device::GpuTrace trace;
  trace.start();
  for (int i = 0; i < 5; ++i) {
    graph.replay();
  }
  const device::GpuProfile profile = device::profile_of(trace.stop());
  EXPECT_EQ(launches_of(profile, device::KernelClass::kElementwise), 15);
  EXPECT_EQ(profile.dropped, 0);
  EXPECT_GT(profile.busy_seconds, 0.0);
  EXPECT_LE(profile.busy_seconds, profile.span_seconds);
  EXPECT_EQ(profile.synchronise_calls, 0) << waits_of(profile);
}

TEST_F(GpuTraceTest, SeesCopiesAndWhatWaits) {
  const at::Tensor x = at::ones({1000}, at::device(at::kCUDA).dtype(at::kFloat));
  device::GpuTrace trace;
  trace.start();
  EXPECT_EQ(x.sum().item<double>(), 1000.0);
  device::synchronize(at::Device(at::kCUDA, 0));
  const at::Tensor y = x.clone();
  const device::GpuProfile profile = device::profile_of(trace.stop());
  EXPECT_EQ(profile.device_to_host_copies, 1);
  EXPECT_GE(profile.synchronise_calls, 2) << waits_of(profile);
  EXPECT_EQ(profile.waits.count("cudaDeviceSynchronize"), 1U) << waits_of(profile);
  const auto copy =
      std::find_if(profile.kernels.begin(), profile.kernels.end(),
                   [](const auto& total) { return total.name == "[copy device to device]"; });
  ASSERT_NE(copy, profile.kernels.end());
  EXPECT_EQ(copy->bytes, 4000);
}

TEST_F(GpuTraceTest, RunsOneAtATimeAndOverAgain) {
  const at::Tensor x = at::zeros({1000}, at::device(at::kCUDA).dtype(at::kFloat));
  at::Tensor(x).add_(1.0);  // loads the kernel
  device::GpuTrace trace;
  EXPECT_THROW((void)trace.stop(), Error);
  for (int i = 1; i < 3; ++i) {
    trace.start();
    device::GpuTrace other;
    EXPECT_THROW(other.start(), Error);
    for (int k = 0; k < i; ++k) {
      at::Tensor(x).add_(1.0);
    }
    EXPECT_EQ(trace.stop().events.size(), static_cast<size_t>(i));
  }
  {
    device::GpuTrace abandoned;
    abandoned.start();
    at::Tensor(x).add_(1.0);
  }
  trace.start();
  EXPECT_TRUE(trace.stop().events.empty());
}

TEST_F(GpuTraceTest, FiftyTrainingStepsNeverWaitForTheDevice) {
  constexpr int64_t kSteps = 50;
  const StepBenchmark result =
      benchmark_step(small_dit(), {.warmup = 5, .steps = kSteps, .profile = true});
  ASSERT_TRUE(result.fast_path) << result.kernels;
  ASSERT_TRUE(result.graphs) << result.kernels;
  ASSERT_TRUE(result.trace.has_value());
  const device::GpuProfile profile = device::profile_of(*result.trace);
  EXPECT_EQ(profile.synchronise_calls, 0) << waits_of(profile);
  EXPECT_EQ(profile.device_to_host_copies, 0);
  EXPECT_EQ(profile.pageable_copies, 0);
  EXPECT_EQ(profile.dropped, 0);
  // The trace was no empty one: each step multiplies, attends and updates.
  EXPECT_GE(launches_of(profile, device::KernelClass::kGemm), kSteps * 2 * 8);
  EXPECT_GE(launches_of(profile, device::KernelClass::kAttention), kSteps * 2 * 2);
  EXPECT_GE(launches_of(profile, device::KernelClass::kOptimizer), kSteps);
}

TEST_F(GpuTraceTest, EachBenchmarkHasItsOwnPeakOfMemory) {
  const auto peak = [](int64_t batch) {
    RunConfig config = small_dit();
    config.train.global_batch = batch;
    return benchmark_step(config, {.warmup = 1, .steps = 1, .profile = false}).peak_memory;
  };
  const int64_t first = peak(64);
  const int64_t large = peak(8192);  // beside it what libraries keep from earlier tests is little
  EXPECT_GT(large, 4 * first);
  EXPECT_LT(peak(64), large / 2);  // workspaces of libraries outlive what used them
}

TEST_F(GpuTraceTest, SamplingIsMeasured) {
  RunConfig config = small_dit();
  config.sample.sampling.method = pipelines::SamplingConfig::Method::kDdim;
  config.sample.sampling.steps = 10;
  config.sample.sampling.guidance = 4.0;
  const SampleBenchmark result =
      benchmark_sample(config, {.batch = 4, .warmup = 2, .repeats = 3, .profile = true});
  EXPECT_GT(result.samples_per_s, 0.0);
  ASSERT_TRUE(result.trace.has_value());
  EXPECT_GE(launches_of(device::profile_of(*result.trace), device::KernelClass::kGemm), 10 * 2 * 4);
  EXPECT_EQ(result.trace->dropped, 0);
}

TEST_F(GpuTraceTest, CeilingsAreMeasured) {
  const DeviceCeilings ceilings = measure_ceilings(at::kBFloat16, at::Device(at::kCUDA, 0));
  EXPECT_GT(ceilings.gemm_tflops, 1.0);
  EXPECT_GT(ceilings.copy_bytes_per_s, 1e10);
}

}  // namespace gpu_trace_test
}  // namespace kinora::train
