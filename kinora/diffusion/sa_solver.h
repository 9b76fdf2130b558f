#pragma once

#include <cstdint>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

namespace kinora::diffusion {

/// SA-Solver (Xue et al. 2023, algorithm 1): a stochastic Adams method of a predictor, and of a
/// corrector by the next evaluation, on the noise that led to it (SASolverScheduler).
struct SaSolver {
  int64_t predictor_order = 2;  ///< 1 to 4
  int64_t corrector_order = 2;  ///< 1 to 4
  /// How noisy steps are that begin at a timestep in [tau_from, tau_to]; others are not.
  double tau = 1.0;
  double tau_from = 200.0;
  double tau_to = 800.0;
  bool predict_x0 = true;         ///< integrates x_0, else eps
  bool lower_order_final = true;  ///< the last steps are of order ..., 2, 1
  Limit limit{};
};

/// Error kConfig for other orders, or an end without noise where eps is integrated.
[[nodiscard]] SolverPlan sa_solver(const NoiseLevels& levels, const SaSolver& solver);

}  // namespace kinora::diffusion
