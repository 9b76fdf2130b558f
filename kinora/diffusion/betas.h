#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// How much noise each step of a discrete chain adds. Computed in double.
namespace kinora::diffusion {

/// How beta grows over a chain.
enum class BetaCurve {
  kLinear,         ///< evenly from start to end (Ho et al. 2020, section 4)
  kScaledLinear,   ///< its square root evenly (Rombach et al. 2022; Stable Diffusion)
  kSquaredCosine,  ///< alpha-bar = cos^2, beta at most 0.999 (Nichol and Dhariwal 2021, eq. 17)
};

/// num_timesteps betas from `start` to `end`; kSquaredCosine reads neither. Unlike in
/// linear_betas() of schedule.h, the ends are taken as given for every length. Error kConfig unless
/// num_timesteps >= 1 and 0 < start <= end < 1.
[[nodiscard]] std::vector<double> make_betas(BetaCurve curve, int64_t num_timesteps, double start,
                                             double end);

/// The chain moved and stretched so that its last state holds no signal at all: sqrt(alpha-bar) is
/// 0 at the end and what it was at the first timestep (Lin et al. 2024, algorithm 1). The last beta
/// is 1. Error kConfig for fewer than two betas.
[[nodiscard]] std::vector<double> zero_terminal_snr(std::span<const double> betas);

/// The chain whose ratio of signal to noise, alpha-bar / (1 - alpha-bar), is everywhere so many
/// times smaller (CogVideoX: 3). Error kConfig unless shift > 0.
[[nodiscard]] std::vector<double> shifted_snr(std::span<const double> betas, double shift);

/// alpha-bar_t = prod of (1 - beta).
[[nodiscard]] std::vector<double> alphas_cumprod(std::span<const double> betas);

}  // namespace kinora::diffusion
