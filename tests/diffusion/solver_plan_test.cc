#include "kinora/diffusion/solver_plan.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/chain_solvers.h"
#include "kinora/diffusion/deis.h"
#include "kinora/diffusion/dpm_solver.h"
#include "kinora/diffusion/sa_solver.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/diffusion/sigma_solvers.h"
#include "kinora/diffusion/unipc.h"
#include "tests/diffusion/recorded_loops.h"
#include "tests/diffusion/tensors.h"
#include "tests/diffusion/toy_denoisers.h"

namespace kinora::diffusion {
namespace solver_plan_test {

at::Tensor run(Denoiser& denoiser, const Sampler& sampler, int64_t count, int64_t first = 0,
               const Conditions& conditions = {}) {
  const SampleKey key{.seed = 5, .sample_index = sample_numbers(count, first)};
  return sample(denoiser, sampler, {count, 2, 8, 8}, conditions, {}, key, at::kCPU);
}

/// The linear chain's eps for N(mean, std^2) data, from its own alpha-bar.
class ChainEps : public Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t, const Conditions& /*conditions*/,
                     const Pass& /*pass*/) override {
    std::vector<double> bars;
    for (int64_t i = 0; i < t.size(0); ++i) {
      bars.push_back(chain_[static_cast<size_t>(std::lround(t[i].item<double>()))]);
    }
    const at::Tensor bar = spread(at::tensor(bars, at::kFloat));
    return (x_t - bar.sqrt() * data.mean) * (1.0 - bar).sqrt() /
           (bar * (data.std * data.std) + 1.0 - bar);
  }
  GaussianData data;

 private:
  std::vector<double> chain_ =
      alphas_cumprod(make_betas(BetaCurve::kLinear, 1000, kDdpmBetaStart, kDdpmBetaEnd));
};

std::vector<double> chain() {
  return alphas_cumprod(make_betas(BetaCurve::kLinear, 1000, kDdpmBetaStart, kDdpmBetaEnd));
}

ChainWalk walk(int64_t num_steps) {
  return {.alphas_cumprod = chain(),
          .timesteps = chain_timesteps(1000, Spacing::kTrailing, num_steps)};
}

NoiseLevels flow(int64_t num_steps) {
  return along_flow(flow_sigmas({.num_steps = num_steps, .ends = FlowSigmas::Ends::kAboveZero}),
                    Prediction::kFlow);
}

/// How far the flow of Gaussian data ends from its exact solution x(0) = mean + std x(1).
double error_of(const SolverPlan& plan) {
  ToyVelocity toy;
  const at::Tensor noise = run(toy, FlowEulerSampler{{1.0, 1.0}}, 2);
  const GaussianData data;
  return max_difference(run(toy, plan, 2), data.mean + data.std * noise);
}

TEST(SolverPlanTest, HigherOrdersConvergeFaster) {
  const double first = error_of(euler(flow(32))) / error_of(euler(flow(64)));
  EXPECT_NEAR(first, 2.0, 0.3);
  const double second = error_of(heun(flow(16))) / error_of(heun(flow(32)));
  EXPECT_NEAR(second, 4.0, 1.0);
  const double coarse = error_of(euler(flow(32)));
  const DpmSolver dpm2{.order = 2};
  const DpmSolver dpm3{.order = 3};
  EXPECT_LT(error_of(linear_multistep(flow(32))), 0.2 * coarse);
  EXPECT_LT(error_of(deis(flow(32), {})), 0.2 * coarse);
  EXPECT_LT(error_of(sa_solver(flow(32), {.tau = 0.0})), 0.3 * coarse);
  EXPECT_LT(error_of(dpm_multistep(flow(32), dpm2)), 0.2 * coarse);
  EXPECT_LT(error_of(dpm_multistep(flow(32), dpm3)), 0.2 * coarse);
  EXPECT_LT(error_of(dpm_singlestep(flow(32), dpm2)), 0.5 * coarse);
  EXPECT_LT(error_of(unipc(flow(32), {.order = 2})), 0.2 * coarse);
  EXPECT_LT(error_of(unipc(flow(32), {.order = 3})), 0.2 * coarse);
}

TEST(SolverPlanTest, EulerAlongAFlowIsTheFlowSampler) {
  ToyVelocity toy;
  const at::Tensor expected = run(toy, FlowEulerSampler{euler_times({3.0}, 7)}, 2);
  const NoiseLevels levels =
      along_flow(flow_sigmas({.num_steps = 7, .shift = 3.0}), Prediction::kFlow);
  EXPECT_LT(max_difference(run(toy, euler(levels), 2), expected), 1e-6);
}

TEST(SolverPlanTest, OneStepIsTheEstimateOfTheData) {
  const std::vector<double> silent =
      alphas_cumprod(zero_terminal_snr(make_betas(BetaCurve::kScaledLinear, 1000, 0.00085, 0.012)));
  const auto one = [&](TimestepConvention convention) {
    return chain_sigmas(silent,
                        {.num_steps = 1, .convention = convention, .spacing = Spacing::kTrailing});
  };
  const NoiseLevels preserving =
      variance_preserving(one(TimestepConvention::kDpmSolver), Prediction::kV, 1000);
  const NoiseLevels exploding =
      variance_exploding(one(TimestepConvention::kSigmas), Prediction::kV, 1000);
  // x is 4096 times noise: a difference of two such numbers would round off 1e-4 and more.
  for (const SolverPlan& plan : {euler(exploding), euler_ancestral(exploding), heun(exploding),
                                 unipc(preserving, {.order = 3, .lower_order_final = false}),
                                 dpm_multistep(preserving, {.order = 3})}) {
    SolverState state(plan);
    ASSERT_EQ(plan.steps.size(), 1U);
    const auto end = state.step(0, plan.initial_scale * start(), noise(1), noise(2));
    EXPECT_EQ(max_difference(end.x, end.x0), 0.0);
    EXPECT_LE(max_difference(end.x0, -noise(1)), 5e-4);  // v of noise alone; its alpha is 2^-12
  }
}

TEST(SolverPlanTest, DdpmAndDdimAreTheSamplersOfTheProject) {
  // The plans have been compared with diffusers. The denoiser may be any for any prediction.
  ToyEps toy(/*learned_variance=*/true);
  const auto expect = [&](const SolverPlan& plan, const Sampler& sampler) {
    EXPECT_LT(max_difference(run(toy, plan, 2), run(toy, sampler, 2)), 2e-5);
  };
  const std::vector<double> linear = linear_betas(1000);
  struct Case {
    Prediction prediction;
    std::vector<double> betas;
  };
  for (const Case& one :
       {Case{Prediction::kEps, linear}, Case{Prediction::kData, linear},
        Case{Prediction::kV, linear}, Case{Prediction::kData, zero_terminal_snr(linear)},
        Case{Prediction::kV, zero_terminal_snr(linear)}}) {
    const DiscreteSchedule schedule =
        respaced(schedule_from_betas(one.betas), spaced_timesteps(1000, Spacing::kDit, 9));
    const ChainWalk even{.alphas_cumprod = alphas_cumprod(one.betas),
                         .timesteps = chain_timesteps(1000, Spacing::kDit, 9),
                         .prediction = one.prediction};
    for (const auto& [variance, of_plan] :
         {std::pair(Variance::kLearnedRange, ChainVariance::kLearnedRange),
          std::pair(Variance::kFixedSmall, ChainVariance::kFixedSmall),
          std::pair(Variance::kFixedLarge, ChainVariance::kFixedLarge)}) {
      expect(ddpm(even, of_plan), DdpmSampler{schedule, variance, false, one.prediction});
    }
    ChainWalk clipped = even;
    clipped.limit = {.kind = Limit::Kind::kClip};
    for (const double eta : {0.0, 0.6}) {
      const Ddim next{.eta = eta, .target = StepTarget::kNextTimestep};
      expect(ddim(even, next), DdimSampler{schedule, eta, false, one.prediction});
      Ddim of_limited = next;
      of_limited.eps_of_limited = true;
      expect(ddim(clipped, of_limited), DdimSampler{schedule, eta, true, one.prediction});
    }
  }
}

TEST(SolverPlanTest, StochasticOnesDrawTheData) {
  ChainEps toy;
  const auto expect_data = [&](const char* name, const SolverPlan& plan) {
    const at::Tensor x = run(toy, plan, 40);
    // Deviation of the mean of 5120 values: 0.007.
    EXPECT_NEAR(x.mean().item<double>(), toy.data.mean, 0.03) << name;
    EXPECT_NEAR(x.std().item<double>(), toy.data.std, 0.03) << name;
  };
  const Sigmas sigmas = chain_sigmas(chain(), {.num_steps = 100});
  expect_data("dpm++ sde", dpm_multistep(variance_preserving(sigmas, Prediction::kEps, 1000),
                                         {.algorithm = DpmSolver::Algorithm::kSdeDpmSolverPlus}));
  const Sigmas visited = chain_sigmas(
      chain(),
      {.num_steps = 200, .convention = TimestepConvention::kSigmas, .spacing = Spacing::kTrailing});
  expect_data("euler ancestral",
              euler_ancestral(variance_exploding(visited, Prediction::kEps, 1000)));
  expect_data("plms", plms(walk(50), {}));
  ChainWalk uneven = walk(50);
  uneven.timesteps = chain_timesteps(1000, Spacing::kDit, 50);
  expect_data("plms to the next timestep", plms(uneven, {.target = StepTarget::kNextTimestep}));
  expect_data("ddpm", ddpm(walk(250), ChainVariance::kFixedSmall));
}

TEST(SolverPlanTest, InversionLeadsBackToTheData) {
  ChainEps toy;
  ChainWalk steps = walk(200);
  const at::Tensor x = run(toy, ddim(steps, {}), 2);
  ChainWalk ascending = steps;
  std::reverse(ascending.timesteps.begin(), ascending.timesteps.end());
  const SolverPlan back = ddim_inverse(ascending);
  SolverState state(back);
  at::Tensor noise = x;
  for (int64_t k = 0; k < 200; ++k) {
    const at::Tensor t = at::full({2}, back.steps[static_cast<size_t>(k)].t, at::kFloat);
    noise = state.step(k, noise, toy.forward(noise, t, {}), {}).x;
  }
  const at::Tensor initial =
      run(toy, FlowEulerSampler{{1.0, 1.0}}, 2);  // a step of no length: the noise itself
  EXPECT_LT(relative_difference(noise, initial), 0.05);
}

TEST(SolverPlanTest, ImagesDoNotDependOnTheBatch) {
  ChainEps toy;
  const SolverPlan plan = dpm_multistep(
      variance_preserving(chain_sigmas(chain(), {.num_steps = 6}), Prediction::kEps, 1000),
      {.algorithm = DpmSolver::Algorithm::kSdeDpmSolverPlus,
       .order = 3,
       .limit = {.kind = Limit::Kind::kThreshold, .max = 2.0}});
  const at::Tensor together = run(toy, plan, 4);
  EXPECT_LT(max_difference(together.narrow(0, 2, 2), run(toy, plan, 2, 2)), 1e-6);
  EXPECT_GT(max_difference(together[0], together[1]), 0.1);
}

TEST(SolverPlanTest, GivenFramesAreShownUnscaledAndStay) {
  class Watcher : public Denoiser {
   public:
    at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/, const Conditions& conditions,
                       const Pass& /*pass*/) override {
      largest = std::max(largest, max_difference(x_t.select(2, 0), conditions.given.select(2, 0)));
      return 0.1 * x_t;
    }
    double largest = 0.0;
  };
  Watcher watcher;
  const Conditions conditions{
      .frame_mask = at::tensor({0, 1, 1}, at::kLong).to(at::kBool).view({1, 3}).expand({2, 3}),
      .given = at::full({2, 2, 3, 2, 2}, 0.25, at::kFloat)};
  const SolverPlan plan = euler(variance_exploding(
      chain_sigmas(chain(), {.num_steps = 4, .convention = TimestepConvention::kSigmas}),
      Prediction::kEps, 1000));
  const SampleKey key{.seed = 1, .sample_index = sample_numbers(2)};
  const at::Tensor x = sample(watcher, plan, {2, 2, 3, 2, 2}, conditions, {}, key, at::kCPU);
  EXPECT_EQ(watcher.largest, 0.0);
  EXPECT_EQ(max_difference(x.select(2, 0), conditions.given.select(2, 0)), 0.0);
  EXPECT_GT(max_difference(x.select(2, 1), conditions.given.select(2, 1)), 0.1);
}

TEST(SolverPlanTest, LimitsBoundTheData) {
  const at::Tensor x0 =
      at::tensor({-4.0, -1.0, 0.5, 2.0, 0.1, 0.2, -0.3, 0.4}, at::kFloat).view({2, 4, 1});
  EXPECT_EQ(limited({}, x0).data_ptr(), x0.data_ptr());
  EXPECT_EQ(limited({.kind = Limit::Kind::kClip, .max = 1.5}, x0).abs().max().item<float>(), 1.5F);
  // The median of |-4|, |-1|, 0.5, 2 is 1.5; the second sample stays below 1, and so as it is.
  const at::Tensor expected =
      at::tensor({-1.0, -1.0 / 1.5, 0.5 / 1.5, 1.0, 0.1, 0.2, -0.3, 0.4}, at::kFloat)
          .view({2, 4, 1});
  EXPECT_LT(max_difference(limited({.kind = Limit::Kind::kThreshold, .max = 3.0, .ratio = 0.5}, x0),
                           expected),
            1e-6);
}

TEST(SolverPlanTest, UnusableSettingsAreRefused) {
  const NoiseLevels levels =
      variance_preserving(chain_sigmas(chain(), {.num_steps = 6}), Prediction::kEps, 1000);
  const auto refused = [](const auto& make) { EXPECT_THROW((void)make(), Error); };
  refused([&] { return dpm_multistep(levels, {.order = 4}); });
  refused([&] { return dpm_multistep(levels, {.algorithm = DpmSolver::Algorithm::kDpmSolver}); });
  refused(
      [&] { return dpm_singlestep(levels, {.algorithm = DpmSolver::Algorithm::kSdeDpmSolver}); });
  refused([&] { return unipc(levels, {.order = 0}); });
  refused([&] { return unipc(levels, {.predict_x0 = false}); });
  refused([&] { return unipc(levels, {.lower_order_final = false}); });
  refused([&] { return deis(levels, {.order = 4}); });
  refused([&] { return sa_solver(levels, {.corrector_order = 5}); });
  refused([&] { return sa_solver(levels, {.predict_x0 = false}); });
  refused([&] { return tcd(walk(4), {.eta = 1.5}); });
  refused([&] { return ancestral_step(1.0, 2.0); });
  refused([&] { return consistency_sigmas({.num_steps = 41}); });
  refused([&] { return euler(levels); });
  refused([&] { return euler_ancestral(flow(4)); });
  refused([&] { return linear_multistep(flow(4), 5); });
  refused([&] { return ddim(walk(4), {.eta = 1.5}); });
  refused([&] { return plms(walk(3), {.runge_kutta = true}); });
  refused([&] { return lcm_timesteps(1000, 60, 50); });
  ChainWalk other = walk(4);
  other.prediction = Prediction::kFlow;
  refused([&] { return ddpm(other, ChainVariance::kFixedSmall); });
  other.prediction = Prediction::kData;
  refused([&] { return plms(other, {}); });
  other.timesteps.clear();
  refused([&] { return lcm(other); });
  // A chain without signal at its end needs another prediction.
  ChainWalk silent = walk(4);
  silent.alphas_cumprod = alphas_cumprod(
      zero_terminal_snr(make_betas(BetaCurve::kLinear, 1000, kDdpmBetaStart, kDdpmBetaEnd)));
  refused([&] { return ddim(silent, {}); });
  silent.prediction = Prediction::kV;
  EXPECT_NO_THROW((void)ddim(silent, {}));
  ChainEps fixed;
  EXPECT_THROW((void)run(fixed, ddpm(walk(4), ChainVariance::kLearnedRange), 2), Error);
}

}  // namespace solver_plan_test
}  // namespace kinora::diffusion
