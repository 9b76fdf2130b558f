#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

/// What the solvers of this folder share.
namespace kinora::diffusion {

/// Below so many steps the last ones of multistep solvers are of lower order (Lu et al. 2022b).
inline constexpr int64_t kFewSteps = 15;

/// log(alpha / sigma): half of the logarithm of signal over noise; infinite without noise.
inline double log_snr(const NoiseLevel& level) {
  return std::log(level.alpha) - std::log(level.sigma);
}

/// `kept`, with x_0 written as what it is made of where nothing limits it: this avoids the
/// differences of large numbers that, say, (x - x_0) / sigma is in float32.
inline Kept folded(const Kept& kept, const ToClean& to_clean, const Limit& limit) {
  if (limit.kind != Limit::Kind::kNone) {
    return kept;
  }
  return {.x = kept.x + kept.x0 * to_clean.x,
          .prediction = kept.prediction + kept.x0 * to_clean.prediction};
}

/// The Lagrange polynomial that is 1 at node j and 0 at the others: its coefficients, from that of
/// u^0.
inline std::vector<double> lagrange_polynomial(const std::vector<double>& nodes, size_t j) {
  std::vector<double> powers = {1.0};
  for (size_t k = 0; k < nodes.size(); ++k) {
    if (k == j) {
      continue;
    }
    const double scale = 1.0 / (nodes[j] - nodes[k]);
    std::vector<double> product(powers.size() + 1);
    for (size_t p = 0; p < powers.size(); ++p) {
      product[p + 1] += powers[p] * scale;
      product[p] -= powers[p] * nodes[k] * scale;
    }
    powers = std::move(product);
  }
  return powers;
}

/// An evaluation at `level` that keeps `kept`.
inline SolverStep evaluation(const NoiseLevel& level, const Kept& kept, const Limit& limit) {
  return {.t = level.t,
          .level = level.level,
          .input_scale = level.input_scale,
          .alpha = level.alpha,
          .sigma = level.sigma,
          .x0_from_x = level.to_clean.x,
          .x0_from_prediction = level.to_clean.prediction,
          .kept = folded(kept, level.to_clean, limit)};
}

/// eps = (x - alpha x_0) / sigma; where alpha is 1, dx / dsigma.
inline Kept noise_of(const NoiseLevel& level) {
  return {.x = 1.0 / level.sigma, .x0 = -level.alpha / level.sigma};
}

}  // namespace kinora::diffusion
