#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/diffusion/guidance.h"
#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/objective.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/diffusion/spacing.h"
#include "kinora/diffusion/step_cache.h"

namespace kinora {
class Fields;
}

namespace kinora::pipelines {

/// What steps and a scale of guidance may be at most: what lies above is a slip of the pen.
inline constexpr int64_t kMostSteps = 10000;
inline constexpr double kMostGuidance = 1000.0;

/// How images are drawn from a trained model: keys below sample.*.
struct SamplingConfig {
  enum class Method {
    kAuto,  ///< ddpm for iddpm, euler for flow
    kDdpm,
    kDdim,
    kPlms,
    kIpndm,
    kDpm,          ///< DPM-Solver++ multistep
    kDpmSde,       ///< with noise
    kDpmSdeChain,  ///< likewise, at the levels of a chain itself
    kDpmSingle,    ///< single step
    kDeis,
    kUniPc,
    kSaSolver,
    kEuler,
    kEulerAncestral,
    kHeun,
    kDpm2,
    kDpm2Ancestral,
    kDpm2Sde,  ///< DPM-Solver++ of two evaluations, with a Brownian path
    kLms,
    kLcm,
    kTcd,
    kConsistency,
  };
  enum class Variance { kAuto, kFixedSmall, kFixedLarge, kLearnedRange };
  enum class SecondOrder { kMidpoint, kHeun };

  Method method = Method::kAuto;
  int64_t steps = 50;
  diffusion::Spacing spacing = diffusion::Spacing::kDit;
  int64_t steps_offset = 0;
  diffusion::SigmaSpacing sigmas = diffusion::SigmaSpacing::kTimesteps;
  int64_t order = 0;                                  // 0: the method's own
  SecondOrder second_order = SecondOrder::kMidpoint;  // dpm++*
  Variance variance = Variance::kAuto;                // ddpm
  double eta = 0.0;                                   // ddim, tcd, sa_solver
  bool end_clean = true;                              // ddim, plms, deis, sa_solver, tcd
  bool clip_denoised = false;
  double threshold = 0.0;  // 0: none
  double threshold_max = 1.0;
  double guidance = 1.5;
  diffusion::GuidanceChannels guidance_channels = diffusion::GuidanceChannels::kAll;
  std::vector<double> guidance_interval = {0.0, 1.0};
  int64_t guidance_alternates_after = 0;
  bool guidance_dynamic = false;
  double guidance_rescale = 0.0;
  double given_guidance = 1.0;
  double given_noise = 0.0;      // of flows: FlowEulerSampler::given_noise
  bool whole_timesteps = false;  // of flows
  double last_level = 0.0;       ///< of flows: the last noise level before 0; 0: as it comes out
  /// Of flows with two experts: below this noise level the model of `low_noise_model` predicts.
  double low_noise = 0.0;
  std::string low_noise_model = {};
  double low_noise_guidance = 0.0;  ///< 0: as guidance
  bool fp8 = false;  ///< products of the blocks, of `kinora sample` and `kinora bench sample`
  diffusion::StepCacheConfig cache = {};  ///< likewise
  /// A sample is the same in every bit whatever is drawn beside it, which costs the batch's speed.
  bool batch_invariant = false;

  /// Everything but the unconditional conditions.
  [[nodiscard]] diffusion::Guidance guidance_of() const;
};

/// Registers the keys; the caller has opened the scope.
void describe(Fields& fields, SamplingConfig& config);

/// The sampler for a model that was trained with `objective`. kConfig if the two do not fit, or for
/// settings that the method does not have.
/// size_shift: of a flow's times, see diffusion::size_shift.
[[nodiscard]] diffusion::Sampler make_sampler(const SamplingConfig& config,
                                              const diffusion::Objective& objective,
                                              double size_shift = 1.0);

/// What the noise of pure noise is multiplied by where `sampler` begins.
[[nodiscard]] double initial_scale(const diffusion::Sampler& sampler);

/// The last steps of a sampler: they begin at alpha * data + sigma * noise.
struct PartialSampler {
  diffusion::Sampler sampler;
  double alpha = 0.0;
  double sigma = 1.0;
};

/// The last int(steps * strength) of make_sampler()'s steps, as the img2img pipelines of diffusers
/// take them: strength 1 is all of them, 0.3 the last three of ten. Methods that remember earlier
/// steps begin anew. kConfig unless 0 < strength <= 1 and a step is left; else as make_sampler().
[[nodiscard]] PartialSampler make_partial_sampler(const SamplingConfig& config,
                                                  const diffusion::Objective& objective,
                                                  double size_shift, double strength);

}  // namespace kinora::pipelines
