#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

/// Which timesteps of a discrete schedule a sampler visits.
namespace kinora::diffusion {

/// Named ways to spread N steps over T timesteps 0..T-1.
enum class Spacing {
  kDit,       ///< 0 and T-1 included, even fractional stride, rounded half to even: what DiT and
              ///< improved-diffusion do for one section (Nichol and Dhariwal 2021, section 4)
  kLeading,   ///< 0, s, 2s, ... with s = T / N rounded down (Lin et al. 2024, table 2); offset 0
  kTrailing,  ///< T-1 downwards with stride T / N (Lin et al. 2024, table 2)
  kLinspace,  ///< N even points from 0 to T-1 (Lin et al. 2024, table 2); N = 1 gives timestep 0
};

/// "dit", "leading", "trailing", "linspace".
[[nodiscard]] std::string_view to_string(Spacing spacing);

/// The inverse; nothing for an unknown name.
[[nodiscard]] std::optional<Spacing> parse_spacing(std::string_view name);

/// To the nearest integer, ties to even: Python's round and numpy's.
[[nodiscard]] int64_t round_half_even(double value);

/// `num_steps` timesteps out of 0..num_timesteps-1, ascending, each once. The last three spacings
/// round as diffusers does (numpy: half to even). Error kConfig unless 1 <= num_steps <=
/// num_timesteps.
[[nodiscard]] std::vector<int64_t> spaced_timesteps(int64_t num_timesteps, Spacing spacing,
                                                    int64_t num_steps);

/// The same from improved-diffusion's notation: a count ("250"), counts of equal sections of the
/// schedule, lowest timesteps first ("10,15,20"; of a remainder the first sections get one timestep
/// each), or "ddimN", the integer stride that yields exactly N steps (Song et al. 2021a, D.2).
/// Error kConfig for anything else, or where a section is smaller than its count.
[[nodiscard]] std::vector<int64_t> spaced_timesteps(int64_t num_timesteps,
                                                    std::string_view sections);

}  // namespace kinora::diffusion
