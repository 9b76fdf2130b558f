#include "kinora/diffusion/noise_levels.h"

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"
#include "kinora/diffusion/beta_quantile.h"
#include "kinora/diffusion/schedule.h"
#include "kinora/diffusion/tuned_levels.h"

namespace kinora::diffusion {
namespace {

constexpr double kKarrasRho = 7.0;
constexpr double kBetaShape = 0.6;
// In place of an alpha-bar of 0, whose sigma is infinite: 1 in the smallest steps of fp16.
constexpr double kLeastAlphaBar = 0x1p-24;
// Rounding downwards must not turn a timestep that is whole but for rounding into the one below.
constexpr double kWhole = 1e-6;
constexpr double kUniPcEnd = 1e-6;
// What the largest sigma of a chain may be off that of the tuned levels, of 1.
constexpr double kSameChain = 1e-3;

/// count values from first to last.
std::vector<double> even(double first, double last, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const double fraction =
        count == 1 ? 0.0 : static_cast<double>(i) / static_cast<double>(count - 1);
    values.push_back(first + fraction * (last - first));
  }
  return values;
}

/// The table's value at a fractional place.
double interpolated(std::span<const double> table, double place) {
  const double below = std::clamp(std::floor(place), 0.0, static_cast<double>(table.size() - 1));
  const auto low = static_cast<size_t>(below);
  const size_t high = std::min(low + 1, table.size() - 1);
  return table[low] + (place - below) * (table[high] - table[low]);
}

/// The fractional place of log sigma in a table of them. The table of a chain of zero terminal SNR
/// does not ascend at its end, where diffusers' choice of the neighbours is followed.
double place_of(double log_sigma, std::span<const double> table) {
  size_t low = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    if (log_sigma >= table[i]) {
      low = i;
    }
  }
  low = std::min(low, table.size() - 2);
  const double share =
      std::clamp((table[low] - log_sigma) / (table[low] - table[low + 1]), 0.0, 1.0);
  return static_cast<double>(low) + share;
}

/// num_steps levels between two by the named spacing.
std::vector<double> between_levels(SigmaSpacing spacing, double largest, double smallest,
                                   int64_t num_steps, double rho = kKarrasRho) {
  std::vector<double> sigmas;
  switch (spacing) {
    case SigmaSpacing::kTimesteps:
    case SigmaSpacing::kLinearQuadratic:
      KINORA_UNREACHABLE("[sampler] these levels do not lie between two");
    case SigmaSpacing::kKarras:
      sigmas = even(std::pow(largest, 1.0 / rho), std::pow(smallest, 1.0 / rho), num_steps);
      for (double& sigma : sigmas) {
        sigma = std::pow(sigma, rho);
      }
      return sigmas;
    case SigmaSpacing::kExponential:
    case SigmaSpacing::kLu:
      sigmas = even(std::log(largest), std::log(smallest), num_steps);
      for (double& sigma : sigmas) {
        sigma = std::exp(sigma);
      }
      return sigmas;
    case SigmaSpacing::kBeta:
      for (const double probability : even(1.0, 0.0, num_steps)) {
        sigmas.push_back(smallest +
                         beta_quantile(probability, kBetaShape, kBetaShape) * (largest - smallest));
      }
      return sigmas;
    case SigmaSpacing::kAys:
      return tuned_levels(TunedLevels::kAys, num_steps);
    case SigmaSpacing::kGits:
      return tuned_levels(TunedLevels::kGits, num_steps);
  }
  KINORA_UNREACHABLE("[sampler] unknown spacing of sigmas");
}

/// As numpy.arange(last, 0, -total / num_steps), rounded, less 1.
std::vector<double> trailing(double last, double total, double num_steps) {
  const double step = total / num_steps;
  const double stride = (last - step) - last;  // what arange makes of it
  std::vector<double> timesteps;
  const auto count = static_cast<int64_t>(std::ceil(last / step - kWhole));
  for (int64_t i = 0; i < count; ++i) {
    timesteps.push_back(
        static_cast<double>(round_half_even(last + static_cast<double>(i) * stride) - 1));
  }
  return timesteps;
}

/// The timesteps that SigmaSpacing::kTimesteps visits, noisiest first.
std::vector<double> visited(const ChainSigmas& options, int64_t num_timesteps,
                            int64_t num_trained) {
  const bool inclusive = options.convention == TimestepConvention::kSigmas;
  const int64_t num_points = inclusive ? options.num_steps : options.num_steps + 1;
  std::vector<double> timesteps;
  switch (options.spacing) {
    case Spacing::kDit:
    case Spacing::kLinspace:
      timesteps = even(0.0, static_cast<double>(num_timesteps - 1), num_points);
      break;
    case Spacing::kLeading:
      for (int64_t i = 0; i < num_points; ++i) {
        const int64_t stride = num_timesteps / num_points;
        timesteps.push_back(static_cast<double>(i * stride + options.steps_offset));
      }
      break;
    case Spacing::kTrailing:
      return trailing(static_cast<double>(num_timesteps), static_cast<double>(num_trained),
                      static_cast<double>(options.num_steps));
  }
  std::reverse(timesteps.begin(), timesteps.end());
  if (!inclusive) {
    timesteps.pop_back();
    for (double& t : timesteps) {
      t = static_cast<double>(round_half_even(t));
    }
  }
  return timesteps;
}

/// Levels of SigmaSpacing::kLinearQuadratic, 0 not among them.
std::vector<double> linear_quadratic(int64_t num_steps) {
  constexpr double kLinear = 0.025;  // what the linear steps go down
  if (num_steps == 1) {
    return {1.0};
  }
  const int64_t num_linear = num_steps / 2;
  const auto linear = static_cast<double>(num_linear);
  const auto quadratic = static_cast<double>(num_steps - num_linear);
  // The parabola goes on as steeply as the line ends, and comes to 1 behind the last step.
  const double slope = kLinear / linear;
  const double bend = (1.0 - kLinear - slope * quadratic) / (quadratic * quadratic);
  std::vector<double> levels;
  for (int64_t i = 0; i < num_steps; ++i) {
    const auto behind = static_cast<double>(std::max<int64_t>(i - num_linear, 0));
    const double down = slope * static_cast<double>(i) + bend * behind * behind;
    levels.push_back(1.0 - down);
  }
  return levels;
}

bool is_tuned(SigmaSpacing spacing) {
  return spacing == SigmaSpacing::kAys || spacing == SigmaSpacing::kGits;
}

/// A middle after each level but the last two.
Sigmas with_middles(const Sigmas& ends, MiddleSigma middle, std::span<const double> logs) {
  Sigmas result;
  for (size_t i = 0; i < ends.timesteps.size(); ++i) {
    const double from = ends.sigmas[i];
    const double to = ends.sigmas[i + 1];
    result.sigmas.push_back(from);
    result.timesteps.push_back(ends.timesteps[i]);
    if (i + 1 < ends.timesteps.size()) {
      const double lowest = middle == MiddleSigma::kOfLowest ? ancestral_step(from, to).down : to;
      result.sigmas.push_back(std::sqrt(from * lowest));
      result.timesteps.push_back(place_of(std::log(result.sigmas.back()), logs));
    }
  }
  result.sigmas.push_back(ends.sigmas.back());
  return result;
}

}  // namespace

AncestralStep ancestral_step(double from, double to) {
  KINORA_CHECK(from >= to, kConfig, "[sampler] the levels of ancestral steps must fall, got sigma ",
               to, " after ", from, ".");
  const double up = to * std::sqrt((1.0 - to / from) * (1.0 + to / from));
  return {.down = to * to / from, .up = up};
}

Sigmas chain_sigmas(std::span<const double> alphas_cumprod, const ChainSigmas& options) {
  const auto num_timesteps = static_cast<int64_t>(alphas_cumprod.size());
  KINORA_CHECK(options.num_steps >= 1 && options.num_steps < num_timesteps, kConfig,
               "[sampler] the number of sampling steps must lie in 1..", num_timesteps - 1,
               " for this method, got ", options.num_steps, ".");
  std::vector<double> table;
  std::vector<double> logs;
  int64_t num_clipped = 0;
  for (const double alpha_bar : alphas_cumprod) {
    const double used = alpha_bar > 0.0 ? alpha_bar : kLeastAlphaBar;
    table.push_back(std::sqrt((1.0 - used) / used));
    logs.push_back(std::log(table.back()));
    num_clipped += static_cast<int64_t>(-logs.back() < options.min_log_snr);
  }
  KINORA_CHECK(options.sigmas != SigmaSpacing::kLinearQuadratic, kConfig,
               "[sampler] linear_quadratic levels are of flows. Hint: karras");
  Sigmas result;
  result.timesteps = visited(options, num_timesteps - num_clipped, num_timesteps);
  for (const double t : result.timesteps) {
    KINORA_CHECK(t >= 0.0 && t <= static_cast<double>(num_timesteps - 1), kConfig,
                 "[sampler] timesteps must lie in 0..", num_timesteps - 1, ", got ", t,
                 ". Hint: a smaller steps offset.");
    result.sigmas.push_back(interpolated(table, t));
  }
  double last = table.front();
  if (options.sigmas != SigmaSpacing::kTimesteps) {
    const bool whole = options.convention == TimestepConvention::kDpmSolver;
    const double smallest = options.sigma_min.value_or(whole ? last : result.sigmas.back());
    const double largest = options.sigma_max.value_or(whole ? table.back() : result.sigmas.front());
    KINORA_CHECK(
        !is_tuned(options.sigmas) || std::fabs(table.back() / kTunedLargest - 1.0) < kSameChain,
        kConfig,
        "[sampler] the levels of ays and gits are tuned for Stable Diffusion's chain, whose "
        "noisiest "
        "sigma is ",
        kTunedLargest, ", but this chain's is ", table.back(), ". Hint: karras");
    result.sigmas = between_levels(options.sigmas, largest, smallest, options.num_steps);
    result.timesteps.clear();
    const bool rounded = is_tuned(options.sigmas) ||
                         (options.round_karras && (options.sigmas == SigmaSpacing::kKarras ||
                                                   options.sigmas == SigmaSpacing::kLu));
    for (const double sigma : result.sigmas) {
      const double place = place_of(std::log(sigma), logs);
      const double nearest = static_cast<double>(round_half_even(place));
      const bool is_nearest =
          whole ? rounded : options.whole_karras && options.sigmas == SigmaSpacing::kKarras;
      result.timesteps.push_back(is_nearest ? nearest : whole ? std::floor(place + kWhole) : place);
    }
    // Not the last of the sigmas: one step alone has but the largest.
    last = whole ? smallest : last;
  }
  result.sigmas.push_back(options.final_sigma == FinalSigma::kZero ? 0.0 : last);
  return options.middle == MiddleSigma::kNone ? result : with_middles(result, options.middle, logs);
}

std::vector<int64_t> chain_timesteps(int64_t num_timesteps, Spacing spacing, int64_t num_steps,
                                     int64_t steps_offset) {
  std::vector<int64_t> timesteps = spaced_timesteps(num_timesteps, spacing, num_steps);
  std::reverse(timesteps.begin(), timesteps.end());
  for (int64_t& t : timesteps) {
    t += spacing == Spacing::kLeading ? steps_offset : 0;
    KINORA_CHECK(t >= 0 && t < num_timesteps, kConfig, "[sampler] timesteps must lie in 0..",
                 num_timesteps - 1, ", got ", t, ". Hint: a smaller steps offset.");
  }
  return timesteps;
}

Sigmas flow_sigmas(const FlowSigmas& options) {
  using Ends = FlowSigmas::Ends;
  KINORA_CHECK(options.num_steps >= 1 && options.shift > 0.0 && options.num_timesteps > 1, kConfig,
               "[sampler] a flow needs at least 1 step and a positive shift, got ",
               options.num_steps, " and ", options.shift, ".");
  KINORA_CHECK(options.sigmas != SigmaSpacing::kLu && !is_tuned(options.sigmas), kConfig,
               "[sampler] flows have no sigmas of Lu et al., and none that were tuned for Stable "
               "Diffusion's chain. Hint: exponential");
  const FlowSchedule shift{options.shift};
  const double smallest = 1.0 / static_cast<double>(options.num_timesteps);
  std::vector<double> sigmas;
  switch (options.ends) {
    case Ends::kWhole:
      sigmas = even(1.0, 0.0, options.num_steps + 1);
      sigmas.pop_back();
      break;
    case Ends::kTrainedLevels:
      // The smallest trained level has been shifted already when all levels are shifted.
      sigmas = even(1.0, options.dynamic ? smallest : shift.shifted(smallest), options.num_steps);
      break;
    case Ends::kBelowOne:
      sigmas = even(1.0 - smallest, 0.0, options.num_steps + 1);
      sigmas.pop_back();
      break;
    case Ends::kAboveZero:
      sigmas = even(1.0, smallest, options.num_steps + 1);
      sigmas.pop_back();
      break;
  }
  if (options.sigmas == SigmaSpacing::kLinearQuadratic) {
    sigmas = linear_quadratic(options.num_steps);
  }
  for (double& sigma : sigmas) {
    sigma = shift.shifted(sigma);
  }
  if (options.terminal.has_value()) {
    KINORA_CHECK(
        sigmas.back() < 1.0, kConfig,
        "[sampler] the last of the levels can be set where there are 2 steps or more, got ",
        options.num_steps);
    const double scale = (1.0 - sigmas.back()) / (1.0 - *options.terminal);
    for (double& sigma : sigmas) {
      sigma = 1.0 - (1.0 - sigma) / scale;
    }
  }
  if (options.sigmas != SigmaSpacing::kTimesteps &&
      options.sigmas != SigmaSpacing::kLinearQuadratic) {
    sigmas = between_levels(options.sigmas, sigmas.front(), sigmas.back(), options.num_steps);
  }
  if (options.ends == Ends::kAboveZero && std::fabs(sigmas.front() - 1.0) < kUniPcEnd) {
    sigmas.front() -= kUniPcEnd;
  }
  Sigmas result{.sigmas = sigmas, .timesteps = sigmas};
  result.sigmas.push_back(0.0);
  return result;
}

double linear_shift(int64_t tokens, double base_shift, double max_shift, int64_t base_tokens,
                    int64_t max_tokens) {
  const double slope = (max_shift - base_shift) / static_cast<double>(max_tokens - base_tokens);
  return base_shift + slope * static_cast<double>(tokens - base_tokens);
}

double dynamic_shift(int64_t tokens, double base_shift, double max_shift, int64_t base_tokens,
                     int64_t max_tokens) {
  return std::exp(linear_shift(tokens, base_shift, max_shift, base_tokens, max_tokens));
}

Sigmas edm_sigmas(const EdmSigmas& options) {
  KINORA_CHECK(options.num_steps >= 1 && options.sigma_min > 0.0 &&
                   options.sigma_min < options.sigma_max && options.rho > 0.0,
               kConfig, "[sampler] EDM needs a step at least and 0 < sigma_min < sigma_max, got ",
               options.num_steps, ", ", options.sigma_min, " and ", options.sigma_max, ".");
  Sigmas result;
  result.sigmas =
      between_levels(options.exponential ? SigmaSpacing::kExponential : SigmaSpacing::kKarras,
                     options.sigma_max, options.sigma_min, options.num_steps, options.rho);
  for (const double sigma : result.sigmas) {
    result.timesteps.push_back(0.25 * std::log(sigma));
  }
  result.sigmas.push_back(options.final_sigma == FinalSigma::kZero ? 0.0 : options.sigma_min);
  return result;
}

Sigmas consistency_sigmas(const ConsistencySigmas& options) {
  KINORA_CHECK(options.num_steps >= 1 && options.num_steps <= options.num_timesteps &&
                   options.num_timesteps > 1 && options.sigma_min > 0.0 &&
                   options.sigma_min < options.sigma_max && options.rho > 0.0,
               kConfig, "[sampler] a consistency model needs 1 to ", options.num_timesteps,
               " steps and 0 < sigma_min < sigma_max, got ", options.num_steps, ", ",
               options.sigma_min, " and ", options.sigma_max, ".");
  const std::vector<double> trained =
      between_levels(SigmaSpacing::kKarras, options.sigma_max, options.sigma_min,
                     options.num_timesteps, options.rho);
  const int64_t stride = options.num_timesteps / options.num_steps;
  Sigmas result;
  for (int64_t i = 0; i < options.num_steps; ++i) {
    result.sigmas.push_back(trained[static_cast<size_t>(i * stride)]);
    result.timesteps.push_back(250.0 * std::log(result.sigmas.back()));
  }
  result.sigmas.push_back(options.sigma_min);
  return result;
}

namespace {

/// One level a sigma: make(sigma), with its timestep and fraction; the last has none.
template <typename Make>
NoiseLevels levels_of(const Sigmas& sigmas, double time_end, const Make& make) {
  KINORA_CHECK(sigmas.sigmas.size() == sigmas.timesteps.size() + 1, kInternal,
               "[sampler] there must be a timestep for each sigma but the last, got ",
               sigmas.timesteps.size(), " and ", sigmas.sigmas.size(), ".");
  NoiseLevels result;
  for (size_t i = 0; i < sigmas.sigmas.size(); ++i) {
    NoiseLevel level = make(sigmas.sigmas[i]);
    if (i < sigmas.timesteps.size()) {
      level.t = sigmas.timesteps[i];
      level.level = std::clamp(level.t / time_end, 0.0, 1.0);
    }
    result.levels.push_back(level);
  }
  return result;
}

double norm(double sigma) {
  return std::sqrt(sigma * sigma + 1.0);
}

double largest_of(const Sigmas& sigmas) {
  return *std::max_element(sigmas.sigmas.begin(), sigmas.sigmas.end());
}

}  // namespace

NoiseLevels variance_preserving(const Sigmas& sigmas, Prediction prediction,
                                int64_t num_timesteps) {
  return levels_of(sigmas, static_cast<double>(num_timesteps - 1), [&](double sigma) {
    const double alpha = 1.0 / norm(sigma);
    return NoiseLevel{.alpha = alpha,
                      .sigma = sigma * alpha,
                      .to_clean = to_clean(prediction, alpha, sigma * alpha)};
  });
}

NoiseLevels variance_exploding(const Sigmas& sigmas, Prediction prediction, int64_t num_timesteps,
                               bool pure_start) {
  NoiseLevels result = levels_of(sigmas, static_cast<double>(num_timesteps - 1), [&](double sigma) {
    return NoiseLevel{.sigma = sigma,
                      .input_scale = 1.0 / norm(sigma),
                      .to_clean = to_clean(prediction, 1.0, sigma)};
  });
  const double largest = largest_of(sigmas);
  result.initial_scale = pure_start ? largest : norm(largest);
  return result;
}

NoiseLevels along_flow(const Sigmas& sigmas, Prediction prediction) {
  KINORA_CHECK(prediction != Prediction::kV, kConfig,
               "[sampler] v is a prediction of chains that preserve variance, not of flows");
  return levels_of(sigmas, 1.0, [&](double sigma) {
    return NoiseLevel{
        .alpha = 1.0 - sigma, .sigma = sigma, .to_clean = to_clean(prediction, 1.0 - sigma, sigma)};
  });
}

NoiseLevels edm_preconditioned(const Sigmas& sigmas, Prediction prediction, double sigma_data,
                               double sigma_max) {
  KINORA_CHECK(prediction == Prediction::kEps || prediction == Prediction::kV, kConfig,
               "[sampler] EDM's preconditioning is for predictions eps and v");
  KINORA_CHECK(sigma_data > 0.0, kConfig, "[sampler] sigma_data must be positive, got ", sigma_data,
               ".");
  const double sign = prediction == Prediction::kEps ? 1.0 : -1.0;
  NoiseLevels result = levels_of(sigmas, 0.25 * std::log(sigma_max), [&](double sigma) {
    const double square = sigma * sigma + sigma_data * sigma_data;
    return NoiseLevel{.sigma = sigma,
                      .input_scale = 1.0 / std::sqrt(square),
                      .to_clean = {.x = sigma_data * sigma_data / square,
                                   .prediction = sign * sigma * sigma_data / std::sqrt(square)}};
  });
  result.initial_scale = norm(sigma_max);
  return result;
}

NoiseLevels consistency_preconditioned(const Sigmas& sigmas, double sigma_data) {
  KINORA_CHECK(sigma_data > 0.0, kConfig, "[sampler] sigma_data must be positive, got ", sigma_data,
               ".");
  const double smallest = sigmas.sigmas.back();
  const double largest = largest_of(sigmas);
  NoiseLevels result = levels_of(sigmas, 250.0 * std::log(largest), [&](double sigma) {
    const double square = sigma * sigma + sigma_data * sigma_data;
    const double above = sigma - smallest;
    return NoiseLevel{
        .sigma = sigma,
        .input_scale = 1.0 / std::sqrt(square),
        .to_clean = {.x = sigma_data * sigma_data / (above * above + sigma_data * sigma_data),
                     .prediction = above * sigma_data / std::sqrt(square)}};
  });
  result.initial_scale = largest;
  return result;
}

}  // namespace kinora::diffusion
