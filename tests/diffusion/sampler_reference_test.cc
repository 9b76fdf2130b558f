#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "kinora/diffusion/sampler.h"
#include "kinora/diffusion/spacing.h"
#include "tests/diffusion/tensors.h"
#include "tests/diffusion/toy_denoisers.h"
#include "tests/tolerances.h"

/// Trajectories of diffusers' schedulers (in double, tools/make_diffusion_fixtures.py) against
/// ours, with the same toy denoiser and noise.
namespace kinora::diffusion {
namespace sampler_reference_test {

constexpr int64_t kSteps = 10;

DiscreteSchedule spaced(Spacing spacing) {
  return respaced(linear_schedule(), spaced_timesteps(1000, spacing, kSteps));
}

class SamplerReferenceTest : public testing::Test {
 protected:
  /// Runs `step` from the fixture's start with its noises and compares every state.
  template <typename Step>
  void expect_trajectory(const std::string& name, const Step& step) {
    const at::Tensor noises = tensor_of(records_.at("noises")).to(at::kFloat);
    const at::Tensor expected = tensor_of(records_.at(name));
    at::Tensor x = tensor_of(records_.at("start")).to(at::kFloat);
    ASSERT_EQ(expected.size(0), kSteps);
    for (int64_t k = 0; k < kSteps; ++k) {
      x = step(k, x, noises[k]);
      EXPECT_EQ(x.scalar_type(), at::kFloat);
      ASSERT_LT(max_difference(x, expected[k]), tolerance::kOtherOrder) << name << ", step " << k;
    }
  }

  void expect_ddpm(const std::string& name, const DdpmSampler& sampler) {
    ToyEps toy(sampler.variance == Variance::kLearnedRange);
    expect_trajectory(name, [&](int64_t k, const at::Tensor& x, const at::Tensor& noise) {
      const int64_t index = kSteps - 1 - k;
      const at::Tensor t = at::full(
          {x.size(0)}, static_cast<double>(sampler.schedule.timestep_map[index]), at::kFloat);
      return ddpm_step(sampler, index, x, toy.forward(x, t, {}), noise).x;
    });
  }

  void expect_ddim(const std::string& name, const DdimSampler& sampler) {
    ToyEps toy(/*learned_variance=*/true);  // to be ignored
    expect_trajectory(name, [&](int64_t k, const at::Tensor& x, const at::Tensor& noise) {
      const int64_t index = kSteps - 1 - k;
      const at::Tensor t = at::full(
          {x.size(0)}, static_cast<double>(sampler.schedule.timestep_map[index]), at::kFloat);
      return ddim_step(sampler, index, x, toy.forward(x, t, {}), noise).x;
    });
  }

  Records records_{"trajectories.txt"};
};

TEST_F(SamplerReferenceTest, DdpmWithLearnedRange) {
  expect_ddpm("ddpm_learned_range_dit", {spaced(Spacing::kDit), Variance::kLearnedRange, false});
  expect_ddpm("ddpm_learned_range_linspace_clip",
              {spaced(Spacing::kLinspace), Variance::kLearnedRange, true});
}

TEST_F(SamplerReferenceTest, DdpmWithFixedVariance) {
  expect_ddpm("ddpm_fixed_small_trailing",
              {spaced(Spacing::kTrailing), Variance::kFixedSmall, false});
  expect_ddpm("ddpm_fixed_large_leading",
              {spaced(Spacing::kLeading), Variance::kFixedLarge, false});
}

TEST_F(SamplerReferenceTest, Ddim) {
  expect_ddim("ddim_eta0_leading", {spaced(Spacing::kLeading), 0.0, false});
  expect_ddim("ddim_eta0_trailing_clip", {spaced(Spacing::kTrailing), 0.0, true});
  expect_ddim("ddim_eta0.7_trailing", {spaced(Spacing::kTrailing), 0.7, false});
  expect_ddim("ddim_eta1_leading_clip", {spaced(Spacing::kLeading), 1.0, true});
}

TEST_F(SamplerReferenceTest, FlowEuler) {
  for (const double shift : {1.0, 3.0}) {
    const FlowEulerSampler sampler{euler_times({shift}, kSteps)};
    const std::string suffix = "shift" + std::to_string(static_cast<int>(shift));
    const std::vector<double>& sigmas = records_.values("flow_sigmas_" + suffix);
    ASSERT_EQ(sigmas.size(), sampler.times.size());
    for (size_t k = 0; k < sigmas.size(); ++k) {
      EXPECT_NEAR(sampler.times[k], sigmas[k], 1e-7);
    }
    ToyVelocity toy;
    expect_trajectory("flow_" + suffix, [&](int64_t k, const at::Tensor& x, const at::Tensor&) {
      const at::Tensor t = at::full({x.size(0)}, sampler.times[k], at::kFloat);
      return flow_euler_step(sampler, k, x, toy.forward(x, t, {})).x;
    });
  }
}

}  // namespace sampler_reference_test
}  // namespace kinora::diffusion
