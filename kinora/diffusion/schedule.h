#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Noise schedules: how much noise x_t holds at time t. Values, computed in double.
namespace kinora::diffusion {

/// Ho et al. 2020 (DDPM), section 4: 1000 steps, beta from 1e-4 to 0.02.
inline constexpr int64_t kDdpmTimesteps = 1000;
inline constexpr double kDdpmBetaStart = 1e-4;
inline constexpr double kDdpmBetaEnd = 0.02;

/// A variance-preserving Markov chain q(x_t | x_{t-1}) = N(sqrt(1 - beta_t) x_{t-1}, beta_t) with
/// every table that losses and samplers look up. All vectors have num_timesteps() entries; index 0
/// is the first noising step. Names as in Ho et al. 2020 and improved-diffusion.
struct DiscreteSchedule {
  std::vector<double> betas;
  std::vector<double> alphas_cumprod;       ///< alpha-bar_t = prod of (1 - beta)
  std::vector<double> alphas_cumprod_prev;  ///< alpha-bar_{t-1}, 1 at index 0

  /// q(x_t | x_0) = N(sqrt_alphas_cumprod x_0, sqrt_one_minus_alphas_cumprod^2), eq. 4.
  std::vector<double> sqrt_alphas_cumprod;
  std::vector<double> sqrt_one_minus_alphas_cumprod;
  /// x_0 = sqrt_recip_alphas_cumprod x_t - sqrt_recipm1_alphas_cumprod eps.
  std::vector<double> sqrt_recip_alphas_cumprod;
  std::vector<double> sqrt_recipm1_alphas_cumprod;

  /// q(x_{t-1} | x_t, x_0) = N(posterior_mean_coef1 x_0 + posterior_mean_coef2 x_t,
  /// posterior_variance), eq. 6 and 7.
  std::vector<double> posterior_variance;  ///< "fixed small"; 0 at index 0
  /// Index 0, whose variance is 0, takes index 1's (Nichol and Dhariwal 2021); in a chain of one
  /// step, which has none, log beta.
  std::vector<double> posterior_log_variance_clipped;
  std::vector<double> posterior_mean_coef1;
  std::vector<double> posterior_mean_coef2;
  std::vector<double> log_betas;  ///< "fixed large"

  /// Index -> timestep of the schedule that the denoiser was trained on: what it is given as t.
  std::vector<int64_t> timestep_map;
  int64_t original_num_timesteps = 0;

  [[nodiscard]] int64_t num_timesteps() const { return static_cast<int64_t>(betas.size()); }
};

/// Betas evenly spaced from 1e-4 to 0.02, both times 1000 / T so that the end of the chain holds
/// about the same noise for every T (improved-diffusion). Error kConfig unless T > 20, where a beta
/// would reach 1.
[[nodiscard]] std::vector<double> linear_betas(int64_t num_timesteps);

/// All tables of a chain. The last beta may be 1 (zero terminal SNR): then the last entries of
/// sqrt_recip_* are infinite. Error kConfig unless every other one lies in (0, 1).
[[nodiscard]] DiscreteSchedule schedule_from_betas(std::vector<double> betas);

/// schedule_from_betas(linear_betas(T)).
[[nodiscard]] DiscreteSchedule linear_schedule(int64_t num_timesteps = kDdpmTimesteps);

/// The chain that visits only `timesteps` (ascending, each once; see spacing.h) of `schedule` and
/// has the same alpha-bar there (Nichol and Dhariwal 2021, eq. 19). Error kConfig for timesteps out
/// of range or order.
[[nodiscard]] DiscreteSchedule respaced(const DiscreteSchedule& schedule,
                                        std::span<const int64_t> timesteps);

/// Rectified flow (Liu et al. 2023; in the direction of Esser et al. 2024, where 1 is noise):
///   x_t = (1 - t) x_0 + t noise,   velocity v = dx_t/dt = noise - x_0,   t in [0, 1].
/// Mind the sign: Liu et al. and Open-Sora 1.2 predict x_0 - noise.
struct FlowSchedule {
  /// Resolution shift s > 0 (Esser et al. 2024, eq. 23): moves times towards noise for s > 1.
  double shift = 1.0;

  /// s t / (1 + (s - 1) t).
  [[nodiscard]] double shifted(double t) const;
};

/// num_steps + 1 times from 1 to 0, even before the shift: step k goes from [k] to [k + 1]. Error
/// kConfig unless num_steps >= 1 and shift > 0.
[[nodiscard]] std::vector<double> euler_times(const FlowSchedule& schedule, int64_t num_steps);

}  // namespace kinora::diffusion
