#include "kinora/pipelines/sampling_config.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/denoiser.h"

namespace kinora::pipelines {
namespace sampling_config_test {

using Method = SamplingConfig::Method;
using testing::HasSubstr;

const diffusion::Objective& learned() {
  static const diffusion::Objective kObjective = diffusion::Iddpm(1000, true);
  return kObjective;
}
const diffusion::Objective& fixed() {
  static const diffusion::Objective kObjective = diffusion::Iddpm(1000, false);
  return kObjective;
}
const diffusion::Objective& flow() {
  static const diffusion::Objective kObjective =
      diffusion::RectifiedFlow{.schedule = {.shift = 3.0}};
  return kObjective;
}

std::string refusal(const SamplingConfig& config, const diffusion::Objective& objective) {
  try {
    (void)make_sampler(config, objective);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(MakeSamplerTest, AutoFollowsTheObjective) {
  const auto of_learned = make_sampler({.steps = 10}, learned());
  ASSERT_TRUE(std::holds_alternative<diffusion::DdpmSampler>(of_learned));
  EXPECT_EQ(std::get<diffusion::DdpmSampler>(of_learned).variance,
            diffusion::Variance::kLearnedRange);
  EXPECT_EQ(diffusion::num_steps(of_learned), 10);
  const auto of_fixed = make_sampler({.steps = 10}, fixed());
  EXPECT_EQ(std::get<diffusion::DdpmSampler>(of_fixed).variance, diffusion::Variance::kFixedLarge);
  const auto of_flow = make_sampler({.steps = 10}, flow());
  ASSERT_TRUE(std::holds_alternative<diffusion::FlowEulerSampler>(of_flow));
  EXPECT_EQ(diffusion::num_steps(of_flow), 10);
}

TEST(MakeSamplerTest, SettingsArrive) {
  const SamplingConfig config{
      .method = Method::kDdim, .steps = 7, .eta = 0.5, .clip_denoised = true};
  const auto sampler = std::get<diffusion::DdimSampler>(make_sampler(config, learned()));
  EXPECT_EQ(sampler.eta, 0.5);
  EXPECT_TRUE(sampler.clip_denoised);
  EXPECT_EQ(sampler.schedule.num_timesteps(), 7);
  // Esser et al. 2024, eq. 23: t' = s t / (1 + (s - 1) t); the middle of two steps is 3/4.
  const auto euler = std::get<diffusion::FlowEulerSampler>(make_sampler({.steps = 2}, flow()));
  ASSERT_EQ(euler.times.size(), 3U);
  EXPECT_DOUBLE_EQ(euler.times[0], 1.0);
  EXPECT_DOUBLE_EQ(euler.times[1], 0.75);
  EXPECT_DOUBLE_EQ(euler.times[2], 0.0);
}

TEST(MakeSamplerTest, MethodsOfTheOtherObjectiveAreRefused) {
  EXPECT_THAT(refusal({.method = Method::kDdpm}, flow()), HasSubstr("must be euler"));
  EXPECT_THAT(refusal({.method = Method::kDdim}, flow()), HasSubstr("must be euler"));
  for (const Method method : {Method::kPlms, Method::kLcm, Method::kEulerAncestral}) {
    EXPECT_THAT(refusal({.method = method}, flow()), HasSubstr("must be euler"));
  }
  EXPECT_THAT(refusal({.steps = 1001}, learned()), HasSubstr("1001"));
}

TEST(MakeSamplerTest, EveryMethodOfAChainMakesItsEvaluations) {
  const struct {
    Method method;
    int64_t evaluations;
  } expected[] = {{Method::kPlms, 9},
                  {Method::kDpm, 8},
                  {Method::kDpmSde, 8},
                  {Method::kDpmSingle, 8},
                  {Method::kUniPc, 8},
                  {Method::kEuler, 8},
                  {Method::kEulerAncestral, 8},
                  {Method::kHeun, 15},
                  {Method::kLms, 8},
                  {Method::kLcm, 8},
                  {Method::kIpndm, 8},
                  {Method::kDeis, 8},
                  {Method::kSaSolver, 8},
                  {Method::kDpm2, 15},
                  {Method::kDpm2Ancestral, 15},
                  {Method::kDpm2Sde, 15},
                  {Method::kTcd, 8},
                  {Method::kConsistency, 8}};
  for (const auto& [method, evaluations] : expected) {
    EXPECT_EQ(diffusion::num_steps(make_sampler({.method = method, .steps = 8}, learned())),
              evaluations)
        << static_cast<int>(method);
  }
  EXPECT_EQ(
      diffusion::num_steps(
          make_partial_sampler({.method = Method::kDpm2, .steps = 8}, learned(), 1.0, 0.5).sampler),
      7);
  for (const Method method :
       {Method::kDpm, Method::kDpmSde, Method::kDpmSingle, Method::kUniPc, Method::kLms,
        Method::kIpndm, Method::kDeis, Method::kSaSolver, Method::kConsistency}) {
    EXPECT_EQ(diffusion::num_steps(make_sampler({.method = method, .steps = 8}, flow())), 8);
  }
  EXPECT_EQ(diffusion::num_steps(make_sampler({.method = Method::kHeun, .steps = 8}, flow())), 15);
}

TEST(MakeSamplerTest, AFlowsTimestepsAreWholeWhereAsked) {
  const auto times = [](bool whole) {
    const auto plan = std::get<diffusion::SolverPlan>(
        make_sampler({.method = Method::kUniPc, .steps = 4, .whole_timesteps = whole}, flow()));
    std::vector<double> all;
    for (const diffusion::SolverStep& step : plan.steps) {
      all.push_back(1000.0 * step.t);
    }
    return all;
  };
  // Those of UniPCMultistepScheduler with flow_shift 3.
  EXPECT_THAT(times(true),
              testing::Pointwise(testing::DoubleNear(1e-9), {999.0, 900.0, 750.0, 500.0}));
  EXPECT_THAT(times(false),
              testing::Pointwise(testing::DoubleNear(1e-3), {999.999, 900.12, 750.3748, 500.999}));
}

TEST(MakeSamplerTest, SettingsOfSolversArrive) {
  const auto plan = [](const SamplingConfig& config) {
    return std::get<diffusion::SolverPlan>(make_sampler(config, learned()));
  };
  SamplingConfig config{.method = Method::kDpm, .steps = 20, .order = 3, .threshold = 0.9};
  const diffusion::SolverPlan third = plan(config);
  EXPECT_EQ(third.steps[10].next.history.size(), 3U);
  EXPECT_EQ(third.limit.kind, diffusion::Limit::Kind::kThreshold);
  EXPECT_EQ(third.limit.ratio, 0.9);
  config.order = 0;
  EXPECT_EQ(plan(config).steps[10].next.history.size(), 2U);
  config.second_order = SamplingConfig::SecondOrder::kHeun;
  EXPECT_NE(plan(config).steps[10].next.history[1],
            plan({.method = Method::kDpm, .steps = 20}).steps[10].next.history[1]);
  config.sigmas = diffusion::SigmaSpacing::kKarras;
  EXPECT_NE(plan(config).steps[10].t, third.steps[10].t);
  EXPECT_EQ(plan({.method = Method::kLms, .steps = 20}).steps[10].next.history.size(), 4U);
  EXPECT_EQ(plan({.method = Method::kEuler,
                  .steps = 10,
                  .spacing = diffusion::Spacing::kLeading,
                  .steps_offset = 1})
                .steps[9]
                .t,
            1.0);
  const auto ddpm = std::get<diffusion::DdpmSampler>(
      make_sampler({.steps = 4, .variance = SamplingConfig::Variance::kFixedSmall}, learned()));
  EXPECT_EQ(ddpm.variance, diffusion::Variance::kFixedSmall);
}

TEST(MakeSamplerTest, AFlowTowardDataIsTurned) {
  const diffusion::RectifiedFlow away;
  diffusion::RectifiedFlow toward;
  toward.toward_data = true;
  const auto conversion = [](const diffusion::Objective& objective) {
    const auto plan = std::get<diffusion::SolverPlan>(
        make_sampler({.method = Method::kUniPc, .steps = 4}, objective));
    return plan.steps[1].x0_from_prediction;
  };
  EXPECT_DOUBLE_EQ(conversion(toward), -conversion(away));
}

/// The best prediction of v for data N(0.3, 0.5^2) on a chain.
class BestV : public diffusion::Denoiser {
 public:
  explicit BestV(const diffusion::Iddpm& chain) : schedule_(chain.schedule()) {}
  at::Tensor predict(const at::Tensor& x, const at::Tensor& t,
                     const diffusion::Conditions& /*conditions*/,
                     const diffusion::Pass& /*pass*/) override {
    // Between timesteps alpha-bar is interpolated; sigma spaced methods ask there.
    const double at = t[0].item<double>();
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, schedule_.alphas_cumprod.size() - 1);
    const double bar = schedule_.alphas_cumprod[below] +
                       (at - static_cast<double>(below)) *
                           (schedule_.alphas_cumprod[above] - schedule_.alphas_cumprod[below]);
    const double alpha = std::sqrt(bar);
    const double sigma = std::sqrt(1.0 - bar);
    const double variance = bar * kStd * kStd + 1.0 - bar;
    const at::Tensor centred = x - alpha * kMean;
    const at::Tensor x0 = kMean + alpha * kStd * kStd / variance * centred;
    const at::Tensor eps = sigma / variance * centred;
    return alpha * eps - sigma * x0;
  }
  static constexpr double kMean = 0.3;
  static constexpr double kStd = 0.5;

 private:
  const diffusion::DiscreteSchedule& schedule_;
};

TEST(MakeSamplerTest, EveryMethodDrawsTheDataOfAChainOfV) {
  // Prediction and betas come from the objective alone.
  const diffusion::Iddpm chain(
      {.betas = diffusion::zero_terminal_snr(diffusion::linear_betas(1000)),
       .prediction = diffusion::Prediction::kV,
       .learned_variance = false});
  BestV denoiser(chain);
  for (const Method method :
       {Method::kDdpm, Method::kDdim, Method::kDpm, Method::kDpmSde, Method::kDpmSingle,
        Method::kUniPc, Method::kEuler, Method::kEulerAncestral, Method::kHeun, Method::kLms,
        Method::kIpndm, Method::kDeis, Method::kSaSolver, Method::kDpm2, Method::kDpm2Ancestral,
        Method::kDpm2Sde}) {
    const auto sampler = make_sampler({.method = method,
                                       .steps = method == Method::kDpm2Sde ? 40 : 200,
                                       .spacing = diffusion::Spacing::kTrailing,
                                       .variance = SamplingConfig::Variance::kFixedSmall,
                                       .eta = method == Method::kSaSolver ? 1.0 : 0.0},
                                      chain);
    const at::Tensor x = diffusion::sample(denoiser, sampler, {64, 1, 8, 8}, {}, {},
                                           {.seed = 1, .sample_index = at::arange(64)}, at::kCPU);
    // Deviation of the mean of 4096 values: 0.008.
    EXPECT_NEAR(x.mean().item<double>(), BestV::kMean, 0.03) << static_cast<int>(method);
    EXPECT_NEAR(x.std().item<double>(), BestV::kStd, 0.03) << static_cast<int>(method);
  }
}

TEST(MakeSamplerTest, PlmsNeedsASignalAndAnotherPredictionThanTheData) {
  const diffusion::Iddpm pure_noise(
      {.betas = diffusion::zero_terminal_snr(diffusion::linear_betas(1000)),
       .prediction = diffusion::Prediction::kV});
  EXPECT_THAT(refusal({.method = Method::kPlms}, pure_noise), HasSubstr("zero terminal SNR"));
  const diffusion::Iddpm chain(
      {.betas = diffusion::linear_betas(1000), .prediction = diffusion::Prediction::kData});
  EXPECT_THAT(refusal({.method = Method::kPlms}, chain), HasSubstr("eps and v"));
  EXPECT_EQ(
      std::get<diffusion::DdimSampler>(make_sampler({.method = Method::kDdim}, chain)).prediction,
      diffusion::Prediction::kData);
}

TEST(MakeSamplerTest, SettingsThatAMethodLacksAreRefused) {
  EXPECT_THAT(refusal({.method = Method::kEuler, .clip_denoised = true}, learned()),
              HasSubstr("clip_denoised"));
  EXPECT_THAT(refusal({.method = Method::kPlms, .threshold = 0.9}, learned()),
              HasSubstr("threshold"));
  EXPECT_THAT(refusal({.method = Method::kDdim, .threshold = 0.9}, learned()),
              HasSubstr("threshold"));
  EXPECT_THAT(refusal({.variance = SamplingConfig::Variance::kLearnedRange}, fixed()),
              HasSubstr("learned"));
  EXPECT_THAT(refusal({.method = Method::kDpm, .order = 4}, learned()), HasSubstr("order"));
  EXPECT_THAT(refusal({.method = Method::kLcm, .steps = 60}, learned()), HasSubstr("60"));
  EXPECT_THAT(refusal({.method = Method::kTcd, .clip_denoised = true}, learned()),
              HasSubstr("clip_denoised"));
  EXPECT_THAT(refusal({.method = Method::kDpm2}, flow()), HasSubstr("dpm++"));
  EXPECT_THAT(refusal({.method = Method::kDpm, .sigmas = diffusion::SigmaSpacing::kAys}, learned()),
              HasSubstr("14.6146"));
}

struct OnlySampling {
  SamplingConfig sampling;
};

void describe(Fields& fields, OnlySampling& config) {
  const auto scope = fields.scope("sample");
  describe(fields, config.sampling);
}

TEST(SamplingConfigTest, KeysAreCheckedAndParseBack) {
  const auto parse = [](const std::string& text) {
    return parse_config<OnlySampling>({.text = "sample: {" + text + "}", .origin = "test"});
  };
  EXPECT_EQ(parse("method: ddim, eta: 1").sampling.method, Method::kDdim);
  EXPECT_EQ(parse("method: dpm++_sde, sigmas: karras").sampling.method, Method::kDpmSde);
  EXPECT_EQ(parse("guidance_rescale: 0.7").sampling.guidance_of().rescale, 0.7);
  EXPECT_FALSE(parse("steps: 3").sampling.cache.any());
  EXPECT_FALSE(parse("cache: tea, cache_threshold: 0").sampling.cache.any());
  EXPECT_TRUE(parse("cache: first_block").sampling.cache.measures());
  EXPECT_FALSE(parse("cache: pab").sampling.cache.measures());
  const std::string dumped = dump_config(
      parse("guidance_interval: [0.25, 0.5], steps: 3, cache: tea, cache_polynomial: [2, -0.5]"));
  EXPECT_EQ(dump_config(parse_config<OnlySampling>({.text = dumped, .origin = "dump"})), dumped);
  for (const char* wrong :
       {"steps: 0", "eta: 1.5", "guidance: -1", "method: rk4", "guidance_interval: [0.5]",
        "order: 5", "threshold: 2", "threshold: 0.9, clip_denoised: true", "guidance_rescale: 2",
        "guidance_interval: [0.6, 0.5]", "guidance_interval: [-0.1, 0.5]", "spacing: random",
        "cache: all", "cache_threshold: -1", "cache_ranges: [0.1]", "cache_ranges: [2, 0, 0, 0]",
        "cache_interval: [0.6, 0.5]", "cache_interval: [0.5]", "cache_gib: -1"}) {
    EXPECT_THROW((void)parse(wrong), Error) << wrong;
  }
}

}  // namespace sampling_config_test
}  // namespace kinora::pipelines
