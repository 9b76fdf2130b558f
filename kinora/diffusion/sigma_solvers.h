#pragma once

#include <cstdint>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

/// Solvers in sigma, where dx / dsigma = (x - x_0) / sigma: that holds for levels of alpha = 1
/// (variance_exploding, edm_preconditioned) and along_flow. Others are refused with kConfig.
namespace kinora::diffusion {

/// Euler's method (Karras et al. 2022, algorithm 1 without its correction; EulerDiscreteScheduler,
/// EDMEulerScheduler, FlowMatchEulerDiscreteScheduler).
[[nodiscard]] SolverPlan euler(const NoiseLevels& levels);

/// Euler's method to a lower level, then noise up to the next one (Crowson's k-diffusion;
/// EulerAncestralDiscreteScheduler). alpha = 1 only.
[[nodiscard]] SolverPlan euler_ancestral(const NoiseLevels& levels);

/// Heun's method of second order, two evaluations a step but for the last one to 0 (Karras et al.
/// 2022, algorithm 1; HeunDiscreteScheduler, FlowMatchHeunDiscreteScheduler).
[[nodiscard]] SolverPlan heun(const NoiseLevels& levels, const Limit& limit = {});

/// Linear multistep (Adams-Bashforth on uneven steps) of up to `order` slopes (Crowson's
/// k-diffusion; LMSDiscreteScheduler). Error kConfig unless 1 <= order <= 4.
[[nodiscard]] SolverPlan linear_multistep(const NoiseLevels& levels, int64_t order = 4);

/// DPM-Solver-2 in sigma: the slope at a step's middle, for which it evaluates twice but for the
/// last one (Karras et al. 2022, algorithm 2 without its noise; KDPM2DiscreteScheduler). levels
/// with middles (MiddleSigma::kOfNext).
[[nodiscard]] SolverPlan dpm2(const NoiseLevels& levels);

/// The same to a lower level, then noise up to the next one (Crowson's k-diffusion;
/// KDPM2AncestralDiscreteScheduler). levels of alpha = 1 with middles (MiddleSigma::kOfLowest).
[[nodiscard]] SolverPlan dpm2_ancestral(const NoiseLevels& levels);

/// DPM-Solver++ of second order for the SDE, whose noise is a Brownian path in sigma, the same for
/// any number of steps (Crowson's k-diffusion; DPMSolverSDEScheduler). levels of alpha = 1 with
/// middles (MiddleSigma::kOfNext).
[[nodiscard]] SolverPlan dpm_sde(const NoiseLevels& levels);

/// Each step ends at the estimate of the data, and draws noise anew up to the next level.
struct Renoised {
  double noise_scale = 1.0;
  double sigma_min = 0.0;  ///< the data have so much noise already
  Limit limit{};
};
/// Consistency sampling (Song et al. 2023, algorithm 1; CMStochasticIterativeScheduler), and of
/// flows what FlowMatchEulerDiscreteScheduler does with stochastic_sampling.
[[nodiscard]] SolverPlan renoised(const NoiseLevels& levels, const Renoised& options = {});

}  // namespace kinora::diffusion
