#include "kinora/pipelines/sampling_config.h"

#include "kinora/core/config.h"
#include "kinora/core/error.h"

namespace kinora::pipelines {

using Method = SamplingConfig::Method;

void describe(Fields& fields, SamplingConfig& config) {
  using diffusion::GuidanceChannels;
  using diffusion::Spacing;
  fields.add("method", config.method,
             {{"auto", Method::kAuto},
              {"ddpm", Method::kDdpm},
              {"ddim", Method::kDdim},
              {"euler", Method::kEuler}},
             "Sampler; auto = ddpm for objective.kind iddpm, euler for flow.");
  fields.add("steps", config.steps, "Sampling steps.", between(1, 1e6));
  fields.add("spacing", config.spacing,
             {{"dit", Spacing::kDit},
              {"leading", Spacing::kLeading},
              {"trailing", Spacing::kTrailing},
              {"linspace", Spacing::kLinspace}},
             "ddpm, ddim: which timesteps are visited.");
  fields.add("eta", config.eta, "ddim: 0 deterministic, 1 as noisy as ddpm.", between(0, 1));
  fields.add("clip_denoised", config.clip_denoised,
             "ddpm, ddim: clip the estimate of the image to [-1, 1]; for pixels, not latents.");
  fields.add("guidance", config.guidance, "Classifier-free guidance scale; 1 = none.", at_least(0));
  fields.add("guidance_channels", config.guidance_channels,
             {{"all", GuidanceChannels::kAll}, {"first_three", GuidanceChannels::kFirstThree}},
             "Channels that guidance moves; first_three is what the original DiT did.");
  fields
      .add("guidance_interval", config.guidance_interval,
           "Noise levels [low, high] at which guidance is on: 0 = clean, 1 = pure noise.",
           between(0, 1))
      .check("be two numbers, low <= high", [&config] {
        return config.guidance_interval.size() == 2 &&
               config.guidance_interval[0] <= config.guidance_interval[1];
      });
}

diffusion::Sampler make_sampler(const SamplingConfig& config, const diffusion::Objective& objective,
                                double size_shift) {
  if (const auto* flow = std::get_if<diffusion::RectifiedFlow>(&objective)) {
    KINORA_CHECK(config.method == Method::kAuto || config.method == Method::kEuler, kConfig,
                 "[sample] sample.method must be euler for a flow model. Hint: auto chooses it");
    diffusion::FlowSchedule schedule = flow->schedule;
    schedule.shift *= size_shift;
    return diffusion::FlowEulerSampler{.times = diffusion::euler_times(schedule, config.steps),
                                       .toward_data = flow->toward_data};
  }
  const auto& iddpm = std::get<diffusion::Iddpm>(objective);
  KINORA_CHECK(config.method != Method::kEuler, kConfig,
               "[sample] sample.method euler is for flow models, and this one was trained with "
               "objective.kind iddpm. Hint: ddpm or ddim");
  const diffusion::DiscreteSchedule schedule = diffusion::respaced(
      iddpm.schedule(),
      diffusion::spaced_timesteps(iddpm.schedule().num_timesteps(), config.spacing, config.steps));
  if (config.method == Method::kDdim) {
    return diffusion::DdimSampler{
        .schedule = schedule, .eta = config.eta, .clip_denoised = config.clip_denoised};
  }
  return diffusion::DdpmSampler{.schedule = schedule,
                                .variance = iddpm.learned_variance()
                                                ? diffusion::Variance::kLearnedRange
                                                : diffusion::Variance::kFixedLarge,
                                .clip_denoised = config.clip_denoised};
}

}  // namespace kinora::pipelines
