#include "kinora/diffusion/schedule.h"

#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"

namespace kinora::diffusion {

std::vector<double> linear_betas(int64_t num_timesteps) {
  const double scale = static_cast<double>(kDdpmTimesteps) / static_cast<double>(num_timesteps);
  const double start = scale * kDdpmBetaStart;
  const double end = scale * kDdpmBetaEnd;
  KINORA_CHECK(num_timesteps >= 1 && end < 1.0, kConfig, "[schedule] linear betas need more than ",
               kDdpmTimesteps * kDdpmBetaEnd, " timesteps, got ", num_timesteps,
               ". Hint: train on 1000 and sample with fewer steps.");
  return make_betas(BetaCurve::kLinear, num_timesteps, start, end);
}

DiscreteSchedule schedule_from_betas(std::vector<double> betas) {
  KINORA_CHECK(!betas.empty(), kConfig, "[schedule] needs at least one timestep, got 0.");
  DiscreteSchedule s;
  s.betas = std::move(betas);
  double cumprod = 1.0;
  for (size_t t = 0; t < s.betas.size(); ++t) {
    const double beta = s.betas[t];
    KINORA_CHECK(beta > 0.0 && (beta < 1.0 || (beta == 1.0 && t + 1 == s.betas.size())), kConfig,
                 "[schedule] beta must lie in (0, 1), at the last timestep in (0, 1], got ", beta,
                 " at timestep ", t, ".");
    const double prev = cumprod;
    cumprod *= 1.0 - beta;
    s.alphas_cumprod.push_back(cumprod);
    s.alphas_cumprod_prev.push_back(prev);
    s.sqrt_alphas_cumprod.push_back(std::sqrt(cumprod));
    s.sqrt_one_minus_alphas_cumprod.push_back(std::sqrt(1.0 - cumprod));
    s.sqrt_recip_alphas_cumprod.push_back(std::sqrt(1.0 / cumprod));
    s.sqrt_recipm1_alphas_cumprod.push_back(std::sqrt(1.0 / cumprod - 1.0));
    s.posterior_variance.push_back(beta * (1.0 - prev) / (1.0 - cumprod));
    s.posterior_mean_coef1.push_back(beta * std::sqrt(prev) / (1.0 - cumprod));
    s.posterior_mean_coef2.push_back((1.0 - prev) * std::sqrt(1.0 - beta) / (1.0 - cumprod));
    s.log_betas.push_back(std::log(beta));
    s.timestep_map.push_back(static_cast<int64_t>(t));
  }
  for (const double variance : s.posterior_variance) {
    s.posterior_log_variance_clipped.push_back(std::log(variance));
  }
  s.posterior_log_variance_clipped[0] =
      s.num_timesteps() > 1 ? s.posterior_log_variance_clipped[1] : s.log_betas[0];
  s.original_num_timesteps = s.num_timesteps();
  return s;
}

DiscreteSchedule linear_schedule(int64_t num_timesteps) {
  return schedule_from_betas(linear_betas(num_timesteps));
}

DiscreteSchedule respaced(const DiscreteSchedule& schedule, std::span<const int64_t> timesteps) {
  std::vector<double> betas;
  std::vector<int64_t> map;
  double last = 1.0;
  int64_t previous = -1;
  for (const int64_t t : timesteps) {
    KINORA_CHECK(t > previous && t < schedule.num_timesteps(), kConfig,
                 "[schedule] timesteps must ascend within 0..", schedule.num_timesteps() - 1,
                 ", got ", t, " after ", previous, ".");
    betas.push_back(1.0 - schedule.alphas_cumprod[t] / last);
    map.push_back(schedule.timestep_map[t]);
    last = schedule.alphas_cumprod[t];
    previous = t;
  }
  DiscreteSchedule result = schedule_from_betas(std::move(betas));
  result.timestep_map = std::move(map);
  result.original_num_timesteps = schedule.original_num_timesteps;
  return result;
}

double FlowSchedule::shifted(double t) const {
  // Exactly 1 at t = 1, for every shift: beyond it no guidance is active.
  return shift * t / (shift * t + (1.0 - t));
}

std::vector<double> euler_times(const FlowSchedule& schedule, int64_t num_steps) {
  KINORA_CHECK(num_steps >= 1, kConfig, "[schedule] sampling needs at least 1 step, got ",
               num_steps, ".");
  KINORA_CHECK(schedule.shift > 0.0 && std::isfinite(schedule.shift), kConfig,
               "[schedule] the flow shift must be positive, got ", schedule.shift, ".");
  std::vector<double> times;
  for (int64_t k = 0; k <= num_steps; ++k) {
    times.push_back(
        schedule.shifted(static_cast<double>(num_steps - k) / static_cast<double>(num_steps)));
  }
  return times;
}

}  // namespace kinora::diffusion
