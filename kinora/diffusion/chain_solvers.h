#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/solver_plan.h"

/// Solvers that walk the timesteps of a discrete chain, for every kind of prediction. (sampler.h's
/// DdpmSampler and DdimSampler are what models of this project sample with.)
namespace kinora::diffusion {

/// A trained chain and the timesteps to visit, noisiest first (chain_timesteps).
struct ChainWalk {
  std::vector<double> alphas_cumprod;  ///< of all trained timesteps
  std::vector<int64_t> timesteps;      ///< of the whole walk, also where a part of it is taken
  Prediction prediction = Prediction::kEps;
  Limit limit{};
  /// The part to take: `count` steps from timesteps[first] on; -1: all that follow. The last four
  /// of ten, {.first = 6}, draw on from a picture that was noised to timesteps[6]; the first four,
  /// {.count = 4}, leave x at the level of timesteps[4]. Strides and targets are those of the
  /// whole.
  int64_t first = 0;
  int64_t count = -1;
};

/// The deviation of DDPM's noise.
enum class ChainVariance {
  kFixedSmall,    ///< the posterior's (Ho et al. 2020, section 3.2)
  kFixedLarge,    ///< beta
  kLearned,       ///< the second half of the output is the variance
  kLearnedRange,  ///< it lies between the two by the second half (Nichol and Dhariwal 2021, eq. 15)
};

/// All of these: kConfig for a walk without steps, or a part that does not lie in it.

/// Ho et al. 2020, algorithm 2 (DDPMScheduler). Noise is added unless the timestep is 0.
[[nodiscard]] SolverPlan ddpm(const ChainWalk& walk, ChainVariance variance);

/// Where a step of DDIM and PLMS leads.
enum class StepTarget {
  kNextTimestep,  ///< the next one visited, after the last to clean data
  /// T / N timesteps down, whatever is visited next (diffusers); N: timesteps of the whole walk.
  /// kConfig for timesteps that are closer together than that, since they are only a part of one.
  kFixedStride,
};

/// Song et al. 2021a, eq. 12 and 16 (DDIMScheduler).
struct Ddim {
  double eta = 0.0;             ///< 0 deterministic ... 1 as noisy as DDPM
  bool eps_of_limited = false;  ///< eps follows from the limited x_0, not from the output
  bool end_clean = true;        ///< below timestep 0 alpha-bar is 1, else that of timestep 0
  StepTarget target = StepTarget::kFixedStride;
};
/// Error kConfig unless 0 <= eta <= 1.
[[nodiscard]] SolverPlan ddim(const ChainWalk& walk, const Ddim& options);

/// DPM-Solver++ of second order with noise (dpm_solver.h) at the chain's own levels, of which the
/// noisiest may hold no signal at all (CogVideoXDPMScheduler). end_clean: as Ddim has it.
[[nodiscard]] SolverPlan dpm_sde_of_chain(const ChainWalk& walk, bool end_clean = true);

/// DDIM backwards, from data to noise: walk.timesteps ascend, each names the level that a step ends
/// at and is given to the denoiser (DDIMInverseScheduler). start_clean: below timestep 0 alpha-bar
/// is 1. Its stride is fixed. Run with x as the data; sample() is not for it.
[[nodiscard]] SolverPlan ddim_inverse(const ChainWalk& walk, bool start_clean = true);

/// Liu et al. 2022 (PNDM): pseudo linear multistep of fourth order on eps, which begins with an
/// improved Euler step, so that the second timestep is evaluated twice.
struct Plms {
  /// Begin with three pseudo Runge-Kutta steps of four evaluations each instead (PNDMScheduler
  /// without skip_prk_steps), at a fixed stride.
  bool runge_kutta = false;
  bool end_clean = true;  ///< as Ddim has it; PNDMScheduler's default is false
  StepTarget target = StepTarget::kFixedStride;
};
/// Limits are not read. Errors kConfig: predictions of data, timesteps of no signal, Runge-Kutta
/// steps of fewer than 4 timesteps or at other strides.
[[nodiscard]] SolverPlan plms(const ChainWalk& walk, const Plms& options);

/// Timesteps of LCM: `num_steps` out of the `trained_steps` that it was distilled on, noisiest
/// first. Error kConfig unless 1 <= num_steps <= trained_steps <= num_timesteps.
[[nodiscard]] std::vector<int64_t> lcm_timesteps(int64_t num_timesteps, int64_t num_steps,
                                                 int64_t trained_steps = 50);

/// Consistency sampling with noise between the steps (Luo et al. 2023, algorithm 3; LCMScheduler).
/// timestep_scaling sharpens the boundary condition at timestep 0.
[[nodiscard]] SolverPlan lcm(const ChainWalk& walk, double timestep_scaling = 10.0);

/// Trajectory consistency sampling (Zheng et al. 2024, algorithm 4; TCDScheduler), on the timesteps
/// of LCM: each step leads below the next timestep, to (1 - eta) of it, and noise leads up to it.
struct Tcd {
  double eta = 0.0;       ///< the paper's gamma: 0 deterministic ... 1 as LCM
  bool end_clean = true;  ///< the last step ends at clean data, else at timestep 0 (diffusers)
};
/// Error kConfig unless 0 <= eta <= 1.
[[nodiscard]] SolverPlan tcd(const ChainWalk& walk, const Tcd& options);

}  // namespace kinora::diffusion
