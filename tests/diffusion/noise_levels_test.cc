#include "kinora/diffusion/noise_levels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kinora/core/error.h"
#include "kinora/diffusion/beta_quantile.h"
#include "kinora/diffusion/betas.h"

namespace kinora::diffusion {
namespace noise_levels_test {

TEST(BetaQuantileTest, EqualsScipy) {
  // scipy.stats.beta.ppf of scipy 1.17.
  const struct {
    double probability;
    double of_levels;  // Beta(0.6, 0.6)
    double skewed;     // Beta(2, 5)
  } expected[] = {{0.001, 1.855873851745199e-05, 0.008255492787746678},
                  {0.1, 0.03958440558878085, 0.09259525891312873},
                  {0.25, 0.17568037865269498, 0.16116291679032652},
                  {0.5, 0.5000000000000001, 0.26444998329566005},
                  {0.73, 0.8015855257954435, 0.37744700765148526},
                  {0.99, 0.9991387611784571, 0.7056863283197075}};
  for (const auto& row : expected) {
    EXPECT_NEAR(beta_quantile(row.probability, 0.6, 0.6), row.of_levels, 1e-12);
    EXPECT_NEAR(beta_quantile(row.probability, 2.0, 5.0), row.skewed, 1e-12);
  }
  EXPECT_EQ(beta_quantile(0.0, 0.6, 0.6), 0.0);
  EXPECT_EQ(beta_quantile(1.0, 0.6, 0.6), 1.0);
}

TEST(BetasTest, CurvesHaveTheirClosedForms) {
  const std::vector<double> linear = make_betas(BetaCurve::kLinear, 11, 0.1, 0.2);
  EXPECT_DOUBLE_EQ(linear[5], 0.15);
  const std::vector<double> scaled = make_betas(BetaCurve::kScaledLinear, 11, 0.01, 0.04);
  EXPECT_DOUBLE_EQ(scaled[0], 0.01);
  EXPECT_NEAR(scaled[5], 0.15 * 0.15, 1e-15);
  // alpha-bar follows Nichol and Dhariwal 2021, eq. 17, as long as no beta is cut.
  const std::vector<double> bars =
      alphas_cumprod(make_betas(BetaCurve::kSquaredCosine, 1000, 0.0, 0.0));
  const auto cosine = [](double t) {
    return std::pow(std::cos((t + 0.008) / 1.008 * std::acos(-1.0) / 2.0), 2.0);
  };
  for (const size_t t : {size_t{0}, size_t{499}, size_t{990}}) {
    EXPECT_NEAR(bars[t], cosine(static_cast<double>(t + 1) / 1000.0) / cosine(0.0), 1e-12) << t;
  }
}

TEST(BetasTest, ZeroTerminalSnrKeepsTheStartAndEndsInNoise) {
  const std::vector<double> betas = make_betas(BetaCurve::kLinear, 1000, 1e-4, 0.02);
  const std::vector<double> before = alphas_cumprod(betas);
  const std::vector<double> after = alphas_cumprod(zero_terminal_snr(betas));
  EXPECT_EQ(after.back(), 0.0);
  EXPECT_NEAR(after.front(), before.front(), 1e-14);
  // Lin et al. 2024, algorithm 1: sqrt(alpha-bar) moves linearly.
  const double first = std::sqrt(before.front());
  const double last = std::sqrt(before.back());
  EXPECT_NEAR(std::sqrt(after[500]), (std::sqrt(before[500]) - last) * first / (first - last),
              1e-12);
}

TEST(BetasTest, UnusableOnesAreRefused) {
  EXPECT_THROW((void)make_betas(BetaCurve::kLinear, 10, 0.2, 0.1), Error);
  EXPECT_THROW((void)make_betas(BetaCurve::kLinear, 10, 0.0, 0.1), Error);
  EXPECT_THROW((void)make_betas(BetaCurve::kScaledLinear, 10, 0.1, 1.0), Error);
  EXPECT_THROW((void)make_betas(BetaCurve::kSquaredCosine, 0, 0.1, 0.2), Error);
  EXPECT_THROW((void)zero_terminal_snr(std::vector<double>{0.1}), Error);
}

std::vector<double> chain() {
  return alphas_cumprod(make_betas(BetaCurve::kLinear, 1000, 1e-4, 0.02));
}

TEST(NoiseLevelsTest, SpacingsShareTheirEnds) {
  const double noisiest = std::sqrt(1.0 / chain().back() - 1.0);
  const double cleanest = std::sqrt(1.0 / chain().front() - 1.0);
  for (const SigmaSpacing spacing : {SigmaSpacing::kKarras, SigmaSpacing::kExponential,
                                     SigmaSpacing::kBeta, SigmaSpacing::kLu}) {
    const Sigmas sigmas = chain_sigmas(chain(), {.num_steps = 8, .sigmas = spacing});
    ASSERT_EQ(sigmas.sigmas.size(), 9U);
    EXPECT_NEAR(sigmas.sigmas[0] / noisiest, 1.0, 1e-9);
    EXPECT_NEAR(sigmas.sigmas[7] / cleanest, 1.0, 1e-9);
    EXPECT_EQ(sigmas.sigmas[8], 0.0);
    EXPECT_EQ(sigmas.timesteps[0], 999.0);
    EXPECT_EQ(sigmas.timesteps[7], 0.0);
    const Sigmas one =
        chain_sigmas(chain(), {.num_steps = 1, .sigmas = spacing, .final_sigma = FinalSigma::kMin});
    EXPECT_NEAR(one.sigmas[0] / noisiest, 1.0, 1e-9);
    EXPECT_NEAR(one.sigmas[1] / cleanest, 1.0, 1e-9);  // not where the step began
  }
  const Sigmas karras = chain_sigmas(chain(), {.num_steps = 3, .sigmas = SigmaSpacing::kKarras});
  const double middle = 0.5 * (std::pow(noisiest, 1.0 / 7.0) + std::pow(cleanest, 1.0 / 7.0));
  EXPECT_NEAR(karras.sigmas[1], std::pow(middle, 7.0), 1e-9);
}

TEST(NoiseLevelsTest, TunedLevelsAreThePublishedOnes) {
  const std::vector<double> stable_diffusion =
      alphas_cumprod(make_betas(BetaCurve::kScaledLinear, 1000, 0.00085, 0.012));
  const auto levels = [&](SigmaSpacing spacing, int64_t num_steps,
                          TimestepConvention convention = TimestepConvention::kSigmas) {
    return chain_sigmas(stable_diffusion,
                        {.num_steps = num_steps, .convention = convention, .sigmas = spacing});
  };
  // diffusers' AysSchedules for 10 steps: StableDiffusionSigmas and StableDiffusionTimesteps.
  EXPECT_EQ(levels(SigmaSpacing::kAys, 10).sigmas,
            (std::vector<double>{14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399,
                                 0.152, 0.0}));
  const double timesteps[] = {999, 850, 736, 645, 545, 455, 343, 233, 124, 24};
  const Sigmas ays = levels(SigmaSpacing::kAys, 10, TimestepConvention::kDpmSolver);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(ays.timesteps[i], timesteps[i], 1.0) << i;  // its sigmas have three digits
  }
  // Twice as many: between each two the geometric mean.
  const Sigmas more = levels(SigmaSpacing::kAys, 20);
  EXPECT_NEAR(more.sigmas[2], 6.475, 1e-12);
  EXPECT_NEAR(more.sigmas[1], std::sqrt(14.615 * 6.475), 1e-12);
  EXPECT_NEAR(more.sigmas[19], std::sqrt(0.152 * 0.029), 1e-12);
  EXPECT_EQ(levels(SigmaSpacing::kGits, 4).sigmas,
            (std::vector<double>{14.61464119, 2.36326075, 0.92192322, 0.36617002, 0.0}));
  EXPECT_NEAR(levels(SigmaSpacing::kGits, 40).sigmas[38], 0.09824532, 1e-12);
  EXPECT_EQ(levels(SigmaSpacing::kGits, 1).sigmas, (std::vector<double>{14.61464119, 0.0}));
  EXPECT_THROW((void)chain_sigmas(chain(), {.num_steps = 10, .sigmas = SigmaSpacing::kAys}), Error);
  EXPECT_THROW((void)flow_sigmas({.num_steps = 10, .sigmas = SigmaSpacing::kGits}), Error);
}

// Those of diffusers' linear_quadratic_schedule.
TEST(NoiseLevelsTest, LinearQuadraticLevelsAreThoseOfDiffusers) {
  const auto levels = [](int64_t steps, double shift = 1.0) {
    return flow_sigmas(
               {.num_steps = steps, .shift = shift, .sigmas = SigmaSpacing::kLinearQuadratic})
        .sigmas;
  };
  const std::vector<double> five = {1.0, 0.9875, 0.975, 0.8583333, 0.5333333, 0.0};
  const std::vector<double> got = levels(5);
  ASSERT_EQ(got.size(), five.size());
  for (size_t i = 0; i < five.size(); ++i) {
    EXPECT_NEAR(got[i], five[i], 1e-6) << i;
    EXPECT_NEAR(levels(5, 3.0)[i], 3.0 * five[i] / (1.0 + 2.0 * five[i]), 1e-6) << i;
  }
  EXPECT_EQ(levels(1), (std::vector<double>{1.0, 0.0}));
  EXPECT_THROW(
      (void)chain_sigmas(chain(), {.num_steps = 10, .sigmas = SigmaSpacing::kLinearQuadratic}),
      Error);
}

TEST(NoiseLevelsTest, LevelsHaveTheSignalOfTheirKind) {
  const Sigmas sigmas = chain_sigmas(chain(), {.num_steps = 5});
  const NoiseLevels preserving = variance_preserving(sigmas, Prediction::kEps, 1000);
  for (const NoiseLevel& level : preserving.levels) {
    EXPECT_NEAR(level.alpha * level.alpha + level.sigma * level.sigma, 1.0, 1e-12);
  }
  EXPECT_EQ(preserving.initial_scale, 1.0);
  EXPECT_DOUBLE_EQ(preserving.levels[0].level, 1.0);
  const NoiseLevels exploding = variance_exploding(sigmas, Prediction::kEps, 1000);
  EXPECT_EQ(exploding.initial_scale, sigmas.sigmas[0]);
  EXPECT_NEAR(exploding.levels[2].input_scale, preserving.levels[2].alpha, 1e-12);
}

TEST(NoiseLevelsTest, OneStateStandsForTheSameDataInEveryPrediction) {
  const double x0 = 0.7;
  const double noise = -1.2;
  for (const double alpha : {0.9, 0.3}) {
    const double sigma = std::sqrt(1.0 - alpha * alpha);
    const auto clean = [&](Prediction prediction, double output) {
      const ToClean from = to_clean(prediction, alpha, sigma);
      return from.x * (alpha * x0 + sigma * noise) + from.prediction * output;
    };
    EXPECT_NEAR(clean(Prediction::kEps, noise), x0, 1e-12);
    EXPECT_NEAR(clean(Prediction::kData, x0), x0, 1e-12);
    EXPECT_NEAR(clean(Prediction::kV, alpha * noise - sigma * x0), x0, 1e-12);
    // The same chain, scaled so that the signal is whole.
    const ToClean scaled = to_clean(Prediction::kV, 1.0, sigma / alpha);
    EXPECT_NEAR(
        scaled.x * (x0 + sigma / alpha * noise) + scaled.prediction * (alpha * noise - sigma * x0),
        x0, 1e-12);
    const ToClean flow = to_clean(Prediction::kFlow, 1.0 - sigma, sigma);
    EXPECT_NEAR(flow.x * ((1.0 - sigma) * x0 + sigma * noise) + flow.prediction * (noise - x0), x0,
                1e-12);
  }
}

TEST(NoiseLevelsTest, DynamicShiftIsThatOfFlux) {
  EXPECT_NEAR(dynamic_shift(256), std::exp(0.5), 1e-12);
  EXPECT_NEAR(dynamic_shift(4096), std::exp(1.15), 1e-12);
  EXPECT_NEAR(dynamic_shift(1024), 1.8776105792643432, 1e-12);  // diffusers' calculate_shift
}

TEST(NoiseLevelsTest, UnusableOptionsAreRefused) {
  EXPECT_THROW((void)chain_sigmas(chain(), {.num_steps = 0}), Error);
  EXPECT_THROW((void)chain_sigmas(chain(), {.num_steps = 1000}), Error);
  EXPECT_THROW((void)chain_sigmas(
                   chain(), {.num_steps = 10, .spacing = Spacing::kLeading, .steps_offset = 500}),
               Error);
  EXPECT_THROW((void)chain_timesteps(1000, Spacing::kLeading, 10, 100), Error);
  EXPECT_THROW((void)flow_sigmas({.num_steps = 0}), Error);
  EXPECT_THROW((void)flow_sigmas({.num_steps = 4, .shift = -1.0}), Error);
  EXPECT_THROW((void)flow_sigmas({.num_steps = 4, .sigmas = SigmaSpacing::kLu}), Error);
  EXPECT_THROW((void)edm_sigmas({.num_steps = 4, .sigma_min = 3.0, .sigma_max = 2.0}), Error);
  const Sigmas flow = flow_sigmas({.num_steps = 4});
  EXPECT_THROW((void)along_flow(flow, Prediction::kV), Error);
  EXPECT_THROW((void)along_flow(flow, Prediction::kEps), Error);  // no signal at sigma 1
  EXPECT_THROW((void)edm_preconditioned(edm_sigmas({}), Prediction::kFlow, 0.5, 80.0), Error);
  EXPECT_THROW((void)edm_preconditioned(edm_sigmas({}), Prediction::kEps, 0.0, 80.0), Error);
}

}  // namespace noise_levels_test
}  // namespace kinora::diffusion
