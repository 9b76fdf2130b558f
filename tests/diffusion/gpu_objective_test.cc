// The loss on a GPU, by its kernel, against the composed one on the CPU.

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "kinora/device/device.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/objective.h"
#include "kinora/diffusion/speedit.h"
#include "kinora/kernels/cuda/random.h"
#include "kinora/ops/diffusion_loss.h"
#include "kinora/ops/random.h"
#include "tests/diffusion/tensors.h"
#include "tests/tolerances.h"

namespace kinora::diffusion {
namespace gpu_objective_test {

class GpuObjectiveTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device::best_device().is_cuda()) {
      GTEST_SKIP() << "there is no GPU";
    }
  }
};

at::Tensor normals(at::IntArrayRef shape, uint64_t seed) {
  return ops::random_normal(shape, sample_numbers(shape[0]), seed, 0, RandomPurpose::kTest,
                            at::kCPU);
}

struct Result {
  Loss loss;
  at::Tensor gradient;  // of 128 * mean
};

Result run(Objective objective, const at::Tensor& prediction, const NoisedBatch& batch,
           const at::Tensor& x0, at::Device device, at::ScalarType type) {
  move_to(objective, device);
  const auto moved = [&](const at::Tensor& tensor) { return tensor.to(device); };
  const at::Tensor leaf = prediction.detach().to(device, type).requires_grad_();
  Result result{
      .loss = loss(objective, leaf, {{}, moved(batch.t), moved(batch.noise), moved(batch.weights)},
                   moved(x0)),
      .gradient = {}};
  (result.loss.mean * at::full({}, 128.0, leaf.options().dtype(at::kFloat))).backward();
  result.gradient = leaf.grad();
  return result;
}

void expect_same(const Objective& objective, const at::Tensor& prediction, const NoisedBatch& batch,
                 const at::Tensor& x0) {
  const Result want = run(objective, prediction, batch, x0, at::kCPU, at::kDouble);
  const Result got = run(objective, prediction, batch, x0, at::kCUDA, at::kFloat);
  EXPECT_LT(relative_difference(got.loss.mean.to(at::kCPU), want.loss.mean),
            tolerance::kOtherOrder);
  EXPECT_LT(relative_difference(got.loss.per_sample.to(at::kCPU), want.loss.per_sample),
            tolerance::kOtherOrder);
  EXPECT_LT(relative_difference(got.loss.mse.to(at::kCPU), want.loss.mse), tolerance::kOtherOrder);
  ASSERT_EQ(got.loss.vb.defined(), want.loss.vb.defined());
  if (want.loss.vb.defined()) {
    EXPECT_LT(relative_difference(got.loss.vb.to(at::kCPU), want.loss.vb), tolerance::kOtherOrder);
  }
  EXPECT_LT(relative_difference(got.gradient.to(at::kCPU), want.gradient), tolerance::kOtherOrder);
  EXPECT_FALSE(got.loss.per_sample.requires_grad());

  // A prediction of half the bits: its own rounding, and that of its gradient.
  const at::Tensor rounded = prediction.to(at::kHalf).to(at::kDouble);
  const Result exact = run(objective, rounded, batch, x0, at::kCPU, at::kDouble);
  const Result half = run(objective, rounded, batch, x0, at::kCUDA, at::kHalf);
  EXPECT_LT(relative_difference(half.loss.per_sample.to(at::kCPU), exact.loss.per_sample),
            tolerance::kOtherOrder);
  EXPECT_LT(relative_difference(half.gradient.to(at::kCPU), exact.gradient), 1e-3);
}

TEST_F(GpuObjectiveTest, TheLossEqualsTheComposedOne) {
  const at::Tensor t = at::tensor({0.0F, 1.0F, 20.0F, 500.0F, 999.0F});
  const at::Tensor x0 = normals({5, 3, 6, 7}, 1).clamp(-1.0, 1.0);
  const at::Tensor noise = normals({5, 3, 6, 7}, 2);
  const at::Tensor eps = noise + 0.5 * normals({5, 3, 6, 7}, 3);
  const at::Tensor weights = at::tensor({1.0F, 0.5F, 2.0F, 0.25F, 1.0F});
  const NoisedBatch batch{{}, t, noise, weights};
  const at::Tensor twice = at::cat({eps, 0.5 * normals({5, 3, 6, 7}, 4)}, 1);
  expect_same(Iddpm(), twice, batch, x0);
  expect_same(Iddpm(1000, /*learned_variance=*/false), eps, batch, x0);
  expect_same(RectifiedFlow{}, eps, batch, x0);
  expect_same(RectifiedFlow{}, twice, batch, x0);
  using Kind = LossWeights::Kind;
  for (const bool learned : {true, false}) {
    const at::Tensor& prediction = learned ? twice : eps;
    for (const Prediction kind : {Prediction::kData, Prediction::kV}) {
      for (const Kind weights : {Kind::kNone, Kind::kMinSnr, Kind::kP2}) {
        expect_same(Iddpm({.betas = zero_terminal_snr(linear_betas(1000)),
                           .prediction = kind,
                           .learned_variance = learned,
                           .weights = {.kind = weights}}),
                    prediction, batch, x0);
      }
    }
    expect_same(Iddpm({.betas = linear_betas(1000),
                       .learned_variance = learned,
                       .weights = {.kind = Kind::kMinSnr}}),
                prediction, batch, x0);
  }
}

TEST_F(GpuObjectiveTest, SpeeditDrawsTheTimestepsOfTheCpu) {
  const std::vector<double> betas = linear_betas(1000);
  Objective objective = Iddpm(
      {.betas = betas, .timestep_probabilities = speedit_probabilities(alphas_cumprod(betas))});
  const NoiseKey key{.seed = 5, .sample_index = sample_numbers(10'000)};
  const at::Tensor want = draw_timesteps(objective, key, at::kCPU).t;
  move_to(objective, at::kCUDA);
  const at::Tensor got = draw_timesteps(objective, key, at::kCUDA).t;
  EXPECT_TRUE(got.is_cuda());
  EXPECT_EQ(max_difference(got.to(at::kCPU), want), 0.0);
}

TEST_F(GpuObjectiveTest, TheKernelIsTakenWhereThereIsOne) {
  const at::Tensor x = normals({2, 1, 2, 2}, 1).to(at::kCUDA);
  const at::Tensor weights = at::full({2}, 1.0, x.options());
  const auto has = [&](const at::Tensor& prediction) {
    return ops::has_fused_loss({.target = kernels::Target::kVelocity,
                                .prediction = prediction,
                                .noise = x,
                                .x0 = x,
                                .weights = weights});
  };
  EXPECT_EQ(has(x), kernels::cuda::has_cuda_kernels());
  EXPECT_FALSE(has(x.to(at::kDouble)));
  EXPECT_FALSE(has(x.to(at::kCPU)));
}

}  // namespace gpu_objective_test
}  // namespace kinora::diffusion
