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

/// Each step draws noise anew at the next level of a flow (FlowMatchEulerDiscreteScheduler with
/// stochastic_sampling).
[[nodiscard]] SolverPlan flow_renoised(const NoiseLevels& levels);

}  // namespace kinora::diffusion
