#pragma once

#include <cstdint>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

/// DPM-Solver (Lu et al. 2022a) and DPM-Solver++ (Lu et al. 2022b): solvers of the diffusion ODE or
/// SDE in the logarithm of signal over noise, on any levels of noise_levels.h.
namespace kinora::diffusion {

/// The settings of both forms, named as in diffusers.
struct DpmSolver {
  enum class Algorithm {
    kDpmSolver,        ///< integrates eps; the last sigma must be above 0
    kDpmSolverPlus,    ///< integrates x_0
    kSdeDpmSolver,     ///< kDpmSolver with noise, multistep of order 1 and 2
    kSdeDpmSolverPlus  ///< kDpmSolverPlus with noise
  };
  Algorithm algorithm = Algorithm::kDpmSolverPlus;
  int64_t order = 2;  ///< 1 to 3
  bool heun = false;  ///< second order of Heun's kind instead of the midpoint's
  /// Lower orders at the end: multistep below 15 steps, single step where the orders do not divide
  /// the number of steps.
  bool lower_order_final = true;
  bool euler_at_final = false;  ///< multistep: the last step is of order 1
  Limit limit{};
};

/// One evaluation a step, higher orders from those before (Lu et al. 2022b, algorithm 2;
/// DPMSolverMultistepScheduler, EDMDPMSolverMultistepScheduler). Error kConfig for settings that do
/// not go together.
[[nodiscard]] SolverPlan dpm_multistep(const NoiseLevels& levels, const DpmSolver& solver);

/// Blocks of 1 to `order` evaluations that begin anew, as many evaluations in all as there are
/// levels (Lu et al. 2022b, algorithm 1; DPMSolverSinglestepScheduler). The same error.
[[nodiscard]] SolverPlan dpm_singlestep(const NoiseLevels& levels, const DpmSolver& solver);

}  // namespace kinora::diffusion
