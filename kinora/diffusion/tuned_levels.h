#pragma once

#include <cstdint>
#include <vector>

namespace kinora::diffusion {

/// Published noise levels that were tuned for Stable Diffusion 1, whose noisiest is kTunedLargest.
enum class TunedLevels {
  kAys,   ///< Align Your Steps (Sabour et al. 2024): for 10 steps
  kGits,  ///< Chen et al. 2024, with coefficient 1.20: for 2 to 20 steps
};

/// sigma of timestep 999 of that chain.
inline constexpr double kTunedLargest = 14.6146;

/// num_steps sigmas, noisiest first. Other numbers of steps are interpolated, the logarithms of the
/// levels linearly in their places, as both papers' authors advise.
[[nodiscard]] std::vector<double> tuned_levels(TunedLevels table, int64_t num_steps);

}  // namespace kinora::diffusion
