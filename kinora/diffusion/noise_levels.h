#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kinora/diffusion/prediction.h"
#include "kinora/diffusion/spacing.h"

/// Which noise levels a solver visits. sigma is noise over signal for chains (Karras et al. 2022)
/// and the time itself for flows. Semantics follow diffusers, whose classes are named where they
/// differ. Computed in double.
namespace kinora::diffusion {

/// How the levels lie between the noisiest and the cleanest.
enum class SigmaSpacing {
  kTimesteps,    ///< those of the timesteps that Spacing chooses
  kKarras,       ///< sigma^(1/7) even (Karras et al. 2022, eq. 5)
  kExponential,  ///< log sigma even
  kBeta,         ///< quantiles of Beta(0.6, 0.6) (Lee et al. 2024)
  kLu,           ///< log sigma even, timesteps rounded (Lu et al. 2022a); chains only
  kAys,          ///< tuned_levels.h; Stable Diffusion's chain only
  kGits,         ///< tuned_levels.h; Stable Diffusion's chain only
  /// Half of the steps to 0.975, the others along a parabola (Polyak et al. 2024, "Movie Gen",
  /// section 3.4); flows only, before their shift.
  kLinearQuadratic,
};

/// Two families count timesteps in ways of their own.
enum class TimestepConvention {
  /// N + 1 points of which the cleanest is left out; sigmas span the whole chain; whole timesteps
  /// (DPMSolver*, UniPC).
  kDpmSolver,
  /// N points, for kLinspace fractional; sigmas span the chosen timesteps (Euler*, Heun, LMS).
  kSigmas,
};

/// What follows the last step.
enum class FinalSigma {
  kZero,
  kMin,  ///< the cleanest level that was trained on
};

/// A level more within every step but the last, for solvers that evaluate there.
enum class MiddleSigma {
  kNone,
  kOfNext,    ///< the geometric mean of a step's ends (KDPM2Discrete, DPMSolverSDE)
  kOfLowest,  ///< of its start and what Euler ancestral steps down to (KDPM2AncestralDiscrete)
};

struct ChainSigmas {
  int64_t num_steps = 50;
  TimestepConvention convention = TimestepConvention::kDpmSolver;
  Spacing spacing = Spacing::kLinspace;  ///< kDit: as kLinspace
  int64_t steps_offset = 0;              ///< added to the timesteps of Spacing::kLeading
  SigmaSpacing sigmas = SigmaSpacing::kTimesteps;
  FinalSigma final_sigma = FinalSigma::kZero;
  /// Timesteps whose log signal-to-noise lies below are left out: half of log(alpha^2 / sigma^2).
  double min_log_snr = -std::numeric_limits<double>::infinity();
  /// kDpmSolver: timesteps of kKarras and kLu are the nearest ones, as those of kAys and kGits;
  /// else, as of the other spacings, those below.
  bool round_karras = true;
  bool whole_karras = false;  ///< kSigmas: timesteps of kKarras are the nearest ones (KDPM2*)
  MiddleSigma middle = MiddleSigma::kNone;
  std::optional<double> sigma_min{};  ///< in place of the chain's
  std::optional<double> sigma_max{};
};

/// Levels sigma, noisiest first, and the timesteps of all but the last.
struct Sigmas {
  std::vector<double> sigmas;     ///< N + 1, with middles 2 N
  std::vector<double> timesteps;  ///< one less, as the denoiser takes them
};

/// A step of ancestral sampling, from sigma down to one below the next, from where noise leads up
/// to it (Crowson's k-diffusion).
struct AncestralStep {
  double down;
  double up;  ///< deviation of the noise
};
/// Error kConfig unless 0 <= to <= from.
[[nodiscard]] AncestralStep ancestral_step(double from, double to);

/// Levels of a chain with these alpha-bar. A last alpha-bar of 0 (zero terminal SNR) is taken as
/// 2^-24. Errors kConfig: steps that the chain does not have, timesteps beyond its end, kAys and
/// kGits of a chain that does not end at kTunedLargest.
[[nodiscard]] Sigmas chain_sigmas(std::span<const double> alphas_cumprod,
                                  const ChainSigmas& options);

/// Whole timesteps from the noisiest, as DDPM, DDIM, PLMS and LCM count them. Error kConfig beyond
/// the chain's end.
[[nodiscard]] std::vector<int64_t> chain_timesteps(int64_t num_timesteps, Spacing spacing,
                                                   int64_t num_steps, int64_t steps_offset = 0);

/// Levels of a flow, before and after the shift of FlowSchedule.
struct FlowSigmas {
  enum class Ends {
    kWhole,          ///< N + 1 even points from 1 to 0: our own flows (euler_times)
    kTrainedLevels,  ///< N even points from 1 to the shifted 1 / T, then 0 (FlowMatchEuler, -Heun)
    kBelowOne,       ///< N points of N + 1 from 1 - 1 / T to 0 (DPMSolver*)
    kAboveZero,      ///< N of N + 1 points from 1, as 1 - 1e-6, to 1 / T (UniPC)
  };
  int64_t num_steps = 50;
  Ends ends = Ends::kWhole;
  int64_t num_timesteps = 1000;  ///< T; not read for kWhole
  double shift = 1.0;
  /// The shift depends on the size (dynamic_shift): the smallest trained level is not shifted.
  bool dynamic = false;
  std::optional<double> terminal{};  ///< stretch so that the last level before 0 is this one
  SigmaSpacing sigmas = SigmaSpacing::kTimesteps;  ///< between the ends that come out of the rest
};

/// timesteps are the sigmas. Error kConfig for unusable options.
[[nodiscard]] Sigmas flow_sigmas(const FlowSigmas& options);

/// Between which shifts by tokens were published.
inline constexpr int64_t kFewTokens = 256;
inline constexpr int64_t kManyTokens = 4096;

/// A flow's shift for a frame of `tokens` tokens, on the line through those of two lengths
/// (Open-Sora 2's get_res_lin_function).
[[nodiscard]] double linear_shift(int64_t tokens, double base_shift = 1.0, double max_shift = 3.0,
                                  int64_t base_tokens = kFewTokens,
                                  int64_t max_tokens = kManyTokens);

/// A flow's shift for an image of `tokens` tokens, exp(mu) with mu linear between two lengths
/// (Flux; diffusers' calculate_shift).
[[nodiscard]] double dynamic_shift(int64_t tokens, double base_shift = 0.5, double max_shift = 1.15,
                                   int64_t base_tokens = kFewTokens,
                                   int64_t max_tokens = kManyTokens);

/// Karras et al. 2022, table 1: levels of a denoiser that is preconditioned from outside.
struct EdmSigmas {
  int64_t num_steps = 50;
  double sigma_min = 0.002;
  double sigma_max = 80.0;
  double rho = 7.0;
  bool exponential = false;  ///< log sigma even instead of sigma^(1 / rho)
  FinalSigma final_sigma = FinalSigma::kZero;
};

/// timesteps are log(sigma) / 4. Error kConfig unless 0 < sigma_min < sigma_max.
[[nodiscard]] Sigmas edm_sigmas(const EdmSigmas& options);

/// Levels of a consistency model that is preconditioned from outside (Song et al. 2023).
struct ConsistencySigmas {
  int64_t num_steps = 1;
  int64_t num_timesteps = 40;  ///< of the discretisation that it was trained on
  double sigma_min = 0.002;
  double sigma_max = 80.0;
  double rho = 7.0;
};

/// Every so many of the trained levels, the last of all ending at sigma_min. timesteps are 250
/// log(sigma), as CMStochasticIterativeScheduler has them. Error kConfig unless there are so many
/// levels, and 0 < sigma_min < sigma_max.
[[nodiscard]] Sigmas consistency_sigmas(const ConsistencySigmas& options);

/// One level: x = alpha x_0 + sigma noise, and what the denoiser is shown there.
struct NoiseLevel {
  double t = 0.0;      ///< as the denoiser takes it
  double level = 0.0;  ///< fraction of the schedule, 1 = pure noise
  double alpha = 1.0;
  double sigma = 0.0;
  double input_scale = 1.0;  ///< the denoiser is shown input_scale * x
  ToClean to_clean{};        ///< of x, not of what is shown
};

/// N + 1 levels; of the last only alpha and sigma count. x begins as initial_scale * noise.
struct NoiseLevels {
  std::vector<NoiseLevel> levels;
  double initial_scale = 1.0;
};

/// x keeps its variance: alpha^2 + sigma^2 = 1. num_timesteps: length of the chain.
[[nodiscard]] NoiseLevels variance_preserving(const Sigmas& sigmas, Prediction prediction,
                                              int64_t num_timesteps);

/// x = x_0 + sigma noise, shown to the denoiser at unit variance. pure_start: the first x is noise
/// alone, else the variance is that of noise on data of variance 1 (diffusers' init_noise_sigma for
/// leading timesteps).
[[nodiscard]] NoiseLevels variance_exploding(const Sigmas& sigmas, Prediction prediction,
                                             int64_t num_timesteps, bool pure_start = true);

/// alpha = 1 - sigma. Prediction::kV is not known there: kConfig.
[[nodiscard]] NoiseLevels along_flow(const Sigmas& sigmas, Prediction prediction);

/// As variance_exploding, with the preconditioning of Karras et al. 2022 around the denoiser; its
/// output is kEps or, with the sign turned, kV.
[[nodiscard]] NoiseLevels edm_preconditioned(const Sigmas& sigmas, Prediction prediction,
                                             double sigma_data, double sigma_max);

/// As edm_preconditioned, with the boundary condition of consistency models: at sigma_min, the last
/// of sigmas, x is the data (Song et al. 2023, appendix C).
[[nodiscard]] NoiseLevels consistency_preconditioned(const Sigmas& sigmas, double sigma_data);

}  // namespace kinora::diffusion
