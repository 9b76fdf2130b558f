#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/models/unets/unet.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/cuda_launch.h"
#include "tests/models/unets/unet_fixture.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace gpu_unet_test {

/// Output and gradients of all parameters and of x_t, on the CPU.
using Results = std::map<std::string, at::Tensor>;

Results run(const UnetFixture& fixture, at::Device device, at::ScalarType type, bool is_fast,
            int64_t controls = 0) {
  ModelConfig config = fixture.config();
  config.unet.controls = controls;
  config.unet.control_channels = {4, 8};
  Unet model(config);
  set_packed_weights(model, device, type);
  if (is_fast) {
    model.use_fast_path(
        std::make_shared<ops::BlockKernels>(ops::KernelOptions(), device, type, false));
  }
  const at::Tensor x_t = fixture.find("forward.x_t").to(device).set_requires_grad(true);
  diffusion::Conditions conditions = fixture.conditions();
  conditions.text = conditions.text.to(device);
  if (conditions.text_lengths.defined()) {
    conditions.text_lengths = conditions.text_lengths.to(device);
  }
  if (controls > 0) {
    conditions.control = (0.5 + 0.5 * formula_values("control", {x_t.size(0), 3 * controls,
                                                                 2 * x_t.size(2), 2 * x_t.size(3)}))
                             .to(device);
  }
  const at::Tensor output = model.forward(x_t, fixture.find("forward.t").to(device), conditions);
  torch::autograd::backward({(output * formula_values("output", output.sizes()).to(device)).sum()},
                            {});
  Results results = {{"output", output.detach().cpu()}, {"x_t", x_t.grad().cpu()}};
  for (const auto& [path, parameter] : model.named_parameters()) {
    results[path] = parameter->grad.cpu();
  }
  return results;
}

class GpuUnetTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!cuda_available() || !ops::cuda::available()) {
      GTEST_SKIP() << "no GPU or no kernels";
    }
    device::configure_computation(0, /*deterministic=*/false);  // fp32 convolutions are fp32
  }
};

TEST_P(GpuUnetTest, EqualsTheCpuInFp32OnBothPaths) {
  const UnetFixture fixture(GetParam());
  const Results want = run(fixture, at::kCPU, at::kFloat, false);
  for (const bool is_fast : {false, true}) {
    for (const auto& [name, values] : run(fixture, at::kCUDA, at::kFloat, is_fast)) {
      EXPECT_LT(ops::relative_error(values, want.at(name)), tolerance::kWholeModel)
          << name << (is_fast ? ", fast" : ", plain");
    }
  }
}

/// Of all results together: |got - want| / |want|.
double whole_error(const Results& got, const Results& want) {
  double gap = 0.0;
  double norm = 0.0;
  for (const auto& [name, values] : want) {
    const at::Tensor exact = values.to(at::kDouble);
    gap += (got.at(name).to(at::kDouble) - exact).square().sum().item<double>();
    norm += exact.square().sum().item<double>();
  }
  return std::sqrt(gap / norm);
}

// The two round at other places: single gradients are off by up to twice as much, or half.
TEST_P(GpuUnetTest, TheFastPathInBf16IsAsNearToFp32AsThePlainOne) {
  const UnetFixture fixture(GetParam());
  const Results want = run(fixture, at::kCPU, at::kFloat, false);
  const Results plain = run(fixture, at::kCUDA, at::kBFloat16, false);
  const Results fast = run(fixture, at::kCUDA, at::kBFloat16, true);
  EXPECT_LT(whole_error(fast, want), 1.25 * whole_error(plain, want));
  EXPECT_LT(ops::relative_error(fast.at("output"), want.at("output")),
            tolerance::kWholeModelInBf16);
}

TEST_P(GpuUnetTest, WhatIsPreparedComputesTheSame) {
  const UnetFixture fixture(GetParam());
  Unet model(fixture.config());
  set_packed_weights(model, at::kCUDA, at::kBFloat16);
  model.use_fast_path(
      std::make_shared<ops::BlockKernels>(ops::KernelOptions(), at::kCUDA, at::kBFloat16, false));
  const at::NoGradGuard no_grad;
  diffusion::Conditions conditions = fixture.conditions();
  conditions.text = conditions.text.cuda();
  if (conditions.text_lengths.defined()) {
    conditions.text_lengths = conditions.text_lengths.cuda();
  }
  const at::Tensor times = at::full({1}, 7.0F).cuda();
  const diffusion::Prepared prepared = model.prepare(times, conditions);
  EXPECT_FALSE(prepared.of_texts.empty());
  const at::Tensor x_t = fixture.find("forward.x_t").cuda();
  const at::Tensor t = times.expand({x_t.size(0)}).contiguous();
  EXPECT_LT(ops::relative_error(
                model.forward(x_t, t, conditions, {.prepared = prepared.at_time(0)}).cpu(),
                model.forward(x_t, t, conditions).cpu()),
            tolerance::kWholeModelInBf16);
}

// Their residuals join what the way down left.
TEST_P(GpuUnetTest, TakesControlNetsOnBothPaths) {
  const UnetFixture fixture(GetParam());
  const Results want = run(fixture, at::kCPU, at::kFloat, false, 2);
  for (const bool is_fast : {false, true}) {
    for (const auto& [name, values] : run(fixture, at::kCUDA, at::kFloat, is_fast, 2)) {
      EXPECT_LT(ops::relative_error(values, want.at(name)), tolerance::kWholeModel)
          << name << (is_fast ? ", fast" : ", plain");
    }
  }
  const Results plain = run(fixture, at::kCUDA, at::kBFloat16, false, 2);
  const Results fast = run(fixture, at::kCUDA, at::kBFloat16, true, 2);
  EXPECT_LT(whole_error(fast, want), 1.25 * whole_error(plain, want));
}

INSTANTIATE_TEST_SUITE_P(Models, GpuUnetTest, testing::Values("unet_sd1", "unet_sd2", "unet_deep"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace gpu_unet_test
}  // namespace kinora::models
