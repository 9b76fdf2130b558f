#pragma once

#include <cstdint>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

/// Multistep solvers that extrapolate eps (Zhang and Chen 2023), on any levels of noise_levels.h.
namespace kinora::diffusion {

struct Deis {
  int64_t order = 2;              ///< 1 to 3
  bool lower_order_final = true;  ///< lower orders at the end, below 15 steps
  Limit limit{};
};

/// DEIS, whose polynomial of eps is one in log(sigma / alpha) (algorithm 1;
/// DEISMultistepScheduler). A step to no noise is of order 1. Error kConfig for another order.
[[nodiscard]] SolverPlan deis(const NoiseLevels& levels, const Deis& solver);

/// iPNDM (appendix H.2; IPNDMScheduler): Adams and Bashforth's sums of up to four eps as on even
/// steps, without Runge-Kutta steps at the start.
[[nodiscard]] SolverPlan ipndm(const NoiseLevels& levels);

}  // namespace kinora::diffusion
