#pragma once

#include <cstdint>
#include <vector>

#include "kinora/diffusion/objective.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/diffusion/spacing.h"

namespace kinora {
class Fields;
}

namespace kinora::pipelines {

/// How images are drawn from a trained model: keys below sample.*.
struct SamplingConfig {
  enum class Method {
    kAuto,  ///< ddpm for iddpm, euler for flow
    kDdpm,
    kDdim,
    kEuler,
  };

  Method method = Method::kAuto;
  int64_t steps = 50;
  diffusion::Spacing spacing = diffusion::Spacing::kDit;  // ddpm, ddim
  double eta = 0.0;                                       // ddim
  bool clip_denoised = false;                             // ddpm, ddim
  double guidance = 1.5;
  diffusion::GuidanceChannels guidance_channels = diffusion::GuidanceChannels::kAll;
  std::vector<double> guidance_interval = {0.0, 1.0};
};

/// Registers the keys; the caller has opened the scope.
void describe(Fields& fields, SamplingConfig& config);

/// The sampler for a model that was trained with `objective`. kConfig if the two do not fit.
/// size_shift: of a flow's times, see diffusion::size_shift.
[[nodiscard]] diffusion::Sampler make_sampler(const SamplingConfig& config,
                                              const diffusion::Objective& objective,
                                              double size_shift = 1.0);

}  // namespace kinora::pipelines
