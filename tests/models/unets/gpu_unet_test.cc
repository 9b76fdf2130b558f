#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/models/unets/unet.h"
#include "kinora/nn/weight_layer.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/cuda_launch.h"
#include "kinora/ops/fp8.h"
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

// As gpu_video_fast_path_test.cc has them, of blocks of four branches.
constexpr double kFp8Tolerance = 0.35;
constexpr double kFp8OutputTolerance = 0.12;

/// A U-Net of whose blocks all widths and rows are multiples of 16, as fp8 products want it.
class WideUnet {
 public:
  WideUnet(at::Device device, at::ScalarType type, std::shared_ptr<ops::BlockKernels> kernels,
           int64_t recomputed = 0)
      : device_(device), model_(config()), kernels_(std::move(kernels)) {
    model_.set_recompute(recomputed);
    model_.use_fast_path(kernels_);
    set_packed_weights(model_, device, type);
  }

  static ModelConfig config() {
    ModelConfig config;
    config.architecture = "unet";
    config.in_channels = 4;
    config.learn_sigma = false;
    config.height = 16;
    config.width = 16;
    config.time_scale = 1.0;
    config.text_channels = 64;
    config.text_tokens = 8;
    config.unet.channels = {64, 128};
    config.unet.resnets = 1;
    config.unet.depths = {1, 1};
    config.unet.middle_depth = 1;
    config.unet.heads = {2, 2};
    return resolved(config);
  }

  [[nodiscard]] Unet& model() { return model_; }

  /// Of an optimizer step without the optimizer.
  Results step() {
    for (const auto& [path, parameter] : model_.named_parameters()) {
      parameter->grad.zero_();
    }
    model_.begin_step();
    const at::Tensor x_t = formula_values("x_t", {2, 4, 16, 16}).to(device_);
    diffusion::Conditions conditions;
    conditions.text = formula_values("text", {2, 8, 64}).to(device_);
    const at::Tensor output = model_.forward(x_t, at::full({2}, 300.0F, x_t.options()), conditions);
    torch::autograd::backward(
        {(output * formula_values("output", output.sizes()).to(device_)).sum()}, {});
    Results results = {{"output", output.detach().cpu()}};
    for (const auto& [path, parameter] : model_.named_parameters()) {
      results[path] = parameter->grad.cpu();
    }
    return results;
  }

 private:
  at::Device device_;
  Unet model_;
  std::shared_ptr<ops::BlockKernels> kernels_;
};

class GpuUnetFp8Test : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available() || !ops::Fp8::possible(kGpu)) {
      GTEST_SKIP() << "there is no GPU with fp8 products";
    }
    device::configure_computation(0, /*deterministic=*/true);
  }

  const at::Device kGpu{at::kCUDA, 0};
  static constexpr int64_t kProducts = 7 * 7;  // of as many blocks with as many products

  [[nodiscard]] std::shared_ptr<ops::BlockKernels> kernels(
      std::optional<ops::Fp8Scaling> scaling) const {
    auto kernels = std::make_shared<ops::BlockKernels>(ops::KernelOptions(), kGpu, at::kBFloat16,
                                                       /*deterministic=*/true);
    if (scaling) {
      kernels->use_fp8(std::make_unique<ops::Fp8>(kProducts, kGpu, *scaling));
    }
    return kernels;
  }
};

TEST_F(GpuUnetFp8Test, StaysNearFp32AndBf16AtEveryRecomputation) {
  const Results want = WideUnet(at::kCPU, at::kFloat, nullptr).step();
  const Results half = WideUnet(kGpu, at::kBFloat16, kernels(std::nullopt)).step();
  const auto recomputed = {int64_t{0}, Unet(WideUnet::config()).config().unet.units()};
  for (const auto& [scaling, name] : {std::pair(ops::Fp8Scaling::kDelayed, "delayed"),
                                      std::pair(ops::Fp8Scaling::kCurrent, "current")}) {
    for (const int64_t blocks : recomputed) {
      const auto own = kernels(scaling);
      WideUnet unet(kGpu, at::kBFloat16, own, blocks);
      EXPECT_EQ(unet.model().num_fast_linears(), kProducts);
      if (scaling == ops::Fp8Scaling::kDelayed) {
        EXPECT_LT(whole_error(unet.step(), half), tolerance::kWholeModelInBf16)
            << "the first step only measures";
      }
      for (int step = 0; step < 2; ++step) {
        const Results got = unet.step();
        const std::string how = own->describe() + ", recomputing " + std::to_string(blocks) +
                                ", step " + std::to_string(step);
        EXPECT_LT(ops::relative_error(got.at("output"), want.at("output")), kFp8OutputTolerance)
            << how;
        EXPECT_LT(whole_error(got, want), kFp8Tolerance) << how;
        EXPECT_LT(whole_error(got, half), kFp8Tolerance) << how;
        EXPECT_GT(whole_error(got, half), 0.0) << how;
      }
      EXPECT_NE(own->describe().find(std::string(name) +
                                     " scaling: 100 % of the blocks' arithmetic, 49 of 49 linears"),
                std::string::npos)
          << own->describe();
    }
  }
}

// What backward computes again is what forward computed: with scales of the tensors' own, which no
// step before changes, the output and gradients are the same.
TEST_F(GpuUnetFp8Test, RecomputedBlocksAreThoseOfForward) {
  const Results kept = WideUnet(kGpu, at::kBFloat16, kernels(ops::Fp8Scaling::kCurrent)).step();
  const Results again = WideUnet(kGpu, at::kBFloat16, kernels(ops::Fp8Scaling::kCurrent),
                                 WideUnet::config().unet.units())
                            .step();
  EXPECT_LT(whole_error(again, kept), tolerance::kOtherOrder);
}

// The scales of a step lead to those of the next, as a resumed run has them.
TEST_F(GpuUnetFp8Test, RestoredScalesGoOn) {
  const auto first = kernels(ops::Fp8Scaling::kDelayed);
  WideUnet unet(kGpu, at::kBFloat16, first);
  (void)unet.step();
  (void)unet.step();
  const std::optional<ops::Fp8State> state = first->fp8()->state();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->amax.size(0), kProducts);
  EXPECT_GT(state->amax.min().item<float>(), 0.0F) << "every product has been seen";
  const Results want = unet.step();
  const auto second = kernels(ops::Fp8Scaling::kDelayed);
  second->fp8()->restore(*state);
  const Results got = WideUnet(kGpu, at::kBFloat16, second).step();
  for (const auto& [name, values] : want) {
    EXPECT_TRUE(at::equal(got.at(name), values)) << name;
  }
}

/// Gradients of updates of ranks that kernels have and have not.
Results run_with_updates(at::Device device, at::ScalarType type, bool is_fast, int64_t rank) {
  Unet model(WideUnet::config());
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->frozen = true;
  }
  for (const nn::NamedWeightLayer& named : model.named_weight_layers()) {
    if (named.path.find("transformer_blocks") != std::string::npos) {
      named.layer->adapt({.rank = rank, .scale = 0.2});
    }
  }
  if (is_fast) {
    model.use_fast_path(
        std::make_shared<ops::BlockKernels>(ops::KernelOptions(), device, type, false));
  }
  set_packed_weights(model, device, type);
  const at::Tensor x_t = formula_values("x_t", {2, 4, 16, 16}).to(device);
  diffusion::Conditions conditions;
  conditions.text = formula_values("text", {2, 8, 64}).to(device);
  const at::Tensor output = model.forward(x_t, at::full({2}, 300.0F, x_t.options()), conditions);
  torch::autograd::backward({(output * formula_values("output", output.sizes()).to(device)).sum()},
                            {});
  Results results = {{"output", output.detach().cpu()}};
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (!parameter->frozen) {
      results[path] = parameter->grad.cpu();
    }
  }
  return results;
}

// Ranks of 8 become one of 32 for queries, keys and values; of 12 one of 64; of 40 there is none.
TEST(GpuUnetUpdatesTest, OnTheFastPathTheyAreAsNearToFp32AsOnThePlainOne) {
  if (!cuda_available() || !ops::cuda::available()) {
    GTEST_SKIP() << "no GPU or no kernels";
  }
  device::configure_computation(0, /*deterministic=*/false);
  for (const int64_t rank : {8, 12, 40}) {
    const Results want = run_with_updates(at::kCPU, at::kFloat, false, rank);
    for (const auto& [name, values] : run_with_updates(at::kCUDA, at::kFloat, true, rank)) {
      EXPECT_LT(ops::relative_error(values, want.at(name)), tolerance::kWholeModel)
          << name << " of rank " << rank;
    }
    const Results plain = run_with_updates(at::kCUDA, at::kBFloat16, false, rank);
    const Results fast = run_with_updates(at::kCUDA, at::kBFloat16, true, rank);
    EXPECT_LT(whole_error(fast, want), 1.25 * whole_error(plain, want)) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuUnetTest, testing::Values("unet_sd1", "unet_sd2", "unet_deep"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace gpu_unet_test
}  // namespace kinora::models
