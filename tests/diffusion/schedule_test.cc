#include "kinora/diffusion/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/spacing.h"
#include "tests/diffusion/records.h"

namespace kinora::diffusion {
namespace schedule_test {

TEST(ScheduleTest, TablesEqualNumpy) {
  const Records records("schedule.txt");
  const DiscreteSchedule s = linear_schedule();
  const std::vector<double>& index = records.values("index");
  const auto expect = [&](const char* name, const std::vector<double>& table, double tolerance) {
    ASSERT_EQ(table.size(), 1000U) << name;
    for (size_t i = 0; i < index.size(); ++i) {
      const double want = records.values(name)[i];
      EXPECT_NEAR(table[static_cast<size_t>(index[i])], want, tolerance * std::abs(want))
          << name << " at " << index[i];
    }
  };
  expect("betas", s.betas, 0.0);
  expect("alphas_cumprod", s.alphas_cumprod, 0.0);
  // The library's own exp, log and sqrt may differ in the last bit.
  expect("posterior_variance", s.posterior_variance, 1e-15);
  expect("posterior_mean_coef1", s.posterior_mean_coef1, 1e-15);
  expect("posterior_mean_coef2", s.posterior_mean_coef2, 1e-15);
  expect("posterior_log_variance_clipped", s.posterior_log_variance_clipped, 1e-15);
}

TEST(ScheduleTest, BetasScaleWithTheNumberOfTimesteps) {
  const Records records("schedule.txt");
  const std::vector<double> betas = linear_betas(4000);
  EXPECT_DOUBLE_EQ(betas[0], records.values("betas_4000")[0]);
  EXPECT_DOUBLE_EQ(betas[1], records.values("betas_4000")[1]);
  EXPECT_DOUBLE_EQ(betas[2000], records.values("betas_4000")[2]);
  EXPECT_DOUBLE_EQ(betas[3999], records.values("betas_4000")[3]);
}

TEST(ScheduleTest, EndsInTheNoiseThatHoEtAlReport) {
  // Ho et al. 2020, section 4: KL(q(x_T | x_0) || N(0, 1)) is about 1e-5 bits a dimension. Their
  // data in [-1, 1] have a mean square of 0.3 or so.
  const double alpha_bar = linear_schedule().alphas_cumprod.back();
  const double nats = 0.5 * (alpha_bar * 0.3 - alpha_bar - std::log1p(-alpha_bar));
  EXPECT_NEAR(nats / std::log(2.0), 1e-5, 0.5e-5);
}

TEST(ScheduleTest, ForwardAndPosteriorTablesAgree) {
  // x_0 recovered from x_t and eps, and the posterior by completing the square (Ho et al. 2020,
  // eq. 2 and 4): precision 1 / (1 - abar_prev) + alpha / beta.
  const DiscreteSchedule s = linear_schedule();
  for (int64_t t = 1; t < s.num_timesteps(); ++t) {
    const double prior = 1.0 - s.alphas_cumprod[t - 1];
    const double precision = 1.0 / prior + (1.0 - s.betas[t]) / s.betas[t];
    ASSERT_NEAR(s.posterior_variance[t] * precision, 1.0, 1e-12) << t;
    ASSERT_NEAR(s.posterior_mean_coef1[t] * precision, std::sqrt(s.alphas_cumprod[t - 1]) / prior,
                1e-9 / prior)
        << t;
    ASSERT_NEAR(s.posterior_mean_coef2[t] * precision * s.betas[t], std::sqrt(1.0 - s.betas[t]),
                1e-9)
        << t;
    ASSERT_NEAR(s.sqrt_recip_alphas_cumprod[t] * s.sqrt_one_minus_alphas_cumprod[t],
                s.sqrt_recipm1_alphas_cumprod[t], 1e-12 * s.sqrt_recipm1_alphas_cumprod[t])
        << t;
  }
  EXPECT_EQ(s.posterior_variance[0], 0.0);
  EXPECT_EQ(s.posterior_mean_coef2[0], 0.0);
  EXPECT_EQ(s.posterior_log_variance_clipped[0], s.posterior_log_variance_clipped[1]);
}

TEST(ScheduleTest, RespacingKeepsAlphaBar) {
  const DiscreteSchedule base = linear_schedule();
  const std::vector<int64_t> steps = spaced_timesteps(1000, Spacing::kDit, 250);
  const DiscreteSchedule s = respaced(base, steps);
  ASSERT_EQ(s.num_timesteps(), 250);
  EXPECT_EQ(s.original_num_timesteps, 1000);
  EXPECT_EQ(s.timestep_map, steps);
  for (int64_t i = 0; i < 250; ++i) {
    ASSERT_NEAR(s.alphas_cumprod[i], base.alphas_cumprod[steps[i]], 1e-14) << i;
  }
  // Again respaced, it still names the timesteps of the base.
  const std::vector<int64_t> few = {3, 100, 249};
  const DiscreteSchedule twice = respaced(s, few);
  EXPECT_EQ(twice.timestep_map, (std::vector<int64_t>{steps[3], steps[100], steps[249]}));
  EXPECT_EQ(twice.original_num_timesteps, 1000);
}

TEST(ScheduleTest, OneStepHasFiniteTables) {
  const std::vector<int64_t> last = {999};
  const DiscreteSchedule s = respaced(linear_schedule(), last);
  EXPECT_TRUE(std::isfinite(s.posterior_log_variance_clipped[0]));
  EXPECT_DOUBLE_EQ(s.posterior_mean_coef1[0], 1.0);
}

TEST(ScheduleTest, AChainMayEndInPureNoise) {
  const DiscreteSchedule s = schedule_from_betas({0.1, 0.2, 1.0});
  EXPECT_EQ(s.sqrt_alphas_cumprod[2], 0.0);
  EXPECT_EQ(s.sqrt_one_minus_alphas_cumprod[2], 1.0);
  // q(x_1 | x_2, x_0) = q(x_1 | x_0): x_2 says nothing.
  EXPECT_DOUBLE_EQ(s.posterior_variance[2], 1.0 - 0.9 * 0.8);
  EXPECT_DOUBLE_EQ(s.posterior_mean_coef1[2], std::sqrt(0.9 * 0.8));
  EXPECT_EQ(s.posterior_mean_coef2[2], 0.0);
  EXPECT_EQ(s.log_betas[2], 0.0);
}

// As CogVideoXDDIMScheduler of diffusers 0.42 has it (snr_shift_scale 3, rescale_betas_zero_snr).
TEST(ScheduleTest, ASignalMayBeWeakerEverywhere) {
  const std::vector<double> betas = make_betas(BetaCurve::kScaledLinear, 1000, 0.00085, 0.012);
  const std::vector<double> usual = alphas_cumprod(betas);
  const std::vector<double> weak = alphas_cumprod(shifted_snr(betas, 3.0));
  for (size_t t = 0; t < usual.size(); t += 37) {
    EXPECT_NEAR(weak[t] / (1.0 - weak[t]) * 3.0, usual[t] / (1.0 - usual[t]),
                1e-9 * usual[t] / (1.0 - usual[t]));
  }
  const std::vector<double> rescaled = alphas_cumprod(zero_terminal_snr(shifted_snr(betas, 3.0)));
  EXPECT_NEAR(rescaled[0], 0.9974543276430069, 1e-12);
  EXPECT_NEAR(rescaled[500], 0.0953281008629264, 1e-12);
  EXPECT_EQ(rescaled[999], 0.0);
  EXPECT_THROW((void)shifted_snr(betas, 0.0), Error);
}

TEST(ScheduleTest, RefusesWhatIsNoChain) {
  EXPECT_THROW(static_cast<void>(linear_schedule(0)), Error);
  EXPECT_THROW(static_cast<void>(linear_schedule(-5)), Error);
  EXPECT_THROW(static_cast<void>(linear_schedule(20)), Error);
  EXPECT_NO_THROW(static_cast<void>(linear_schedule(21)));
  EXPECT_THROW(static_cast<void>(schedule_from_betas({})), Error);
  EXPECT_THROW(static_cast<void>(schedule_from_betas({0.1, 0.0})), Error);
  EXPECT_THROW(static_cast<void>(schedule_from_betas({1.0, 0.1})), Error);
  EXPECT_THROW(static_cast<void>(schedule_from_betas({0.1, 1.1})), Error);
  EXPECT_THROW(static_cast<void>(schedule_from_betas({0.1, std::nan("")})), Error);
  const DiscreteSchedule base = linear_schedule();
  for (const std::vector<int64_t>& steps :
       {std::vector<int64_t>{}, {-1, 3}, {3, 3}, {5, 4}, {999, 1000}}) {
    EXPECT_THROW(static_cast<void>(respaced(base, steps)), Error);
  }
}

TEST(FlowScheduleTest, ShiftIsThatOfTheSignalToNoiseRatio) {
  // Esser et al. 2024, eq. 23: the shift s scales noise over signal, t / (1 - t), by s.
  const FlowSchedule flow{3.0};
  for (const double t : {0.1, 0.5, 0.9}) {
    const double shifted = flow.shifted(t);
    EXPECT_NEAR(shifted / (1.0 - shifted), 3.0 * t / (1.0 - t), 1e-12);
  }
  EXPECT_EQ(flow.shifted(0.0), 0.0);
  EXPECT_EQ(flow.shifted(1.0), 1.0);
}

TEST(FlowScheduleTest, TimesRunFromOneToZero) {
  EXPECT_EQ(euler_times({}, 4), (std::vector<double>{1.0, 0.75, 0.5, 0.25, 0.0}));
  EXPECT_THROW(static_cast<void>(euler_times({}, 0)), Error);
  EXPECT_THROW(static_cast<void>(euler_times({0.0}, 4)), Error);
  EXPECT_THROW(static_cast<void>(euler_times({-1.0}, 4)), Error);
}

}  // namespace schedule_test
}  // namespace kinora::diffusion
