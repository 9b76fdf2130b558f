#include "kinora/diffusion/objective_config.h"

#include "kinora/core/config.h"

namespace kinora::diffusion {

void describe(Fields& fields, ObjectiveConfig& config) {
  using Kind = ObjectiveConfig::Kind;
  using Sampling = ObjectiveConfig::TimestepSampling;
  using Times = RectifiedFlow::Times;
  const auto scope = fields.scope("objective");
  fields.add("kind", config.kind, {{"iddpm", Kind::kIddpm}, {"flow", Kind::kFlow}},
             "What the model learns: noise (and its variance) on a discrete chain, or the velocity "
             "of a rectified flow.");
  fields.add("timesteps", config.timesteps, "iddpm: length of the chain, linear betas.",
             between(21, 1e6));
  fields
      .add("timestep_sampling", config.timestep_sampling,
           {{"uniform", Sampling::kUniform}, {"importance", Sampling::kImportance}},
           "iddpm: how t is drawn; importance = loss-second-moment of IDDPM.")
      .check("be uniform for flow", [&config] {
        return config.kind == Kind::kIddpm || config.timestep_sampling == Sampling::kUniform;
      });
  fields.add("times", config.times,
             {{"uniform", Times::kUniform}, {"logit_normal", Times::kLogitNormal}},
             "flow: how t is drawn.");
  fields.add("logit_mean", config.logit_mean, "flow: mean of the logit of t; above 0 = noisier.");
  fields.add("logit_std", config.logit_std, "flow: standard deviation of the logit of t.",
             above(0));
  fields.add("shift", config.shift,
             "flow: resolution shift of t, in training and sampling; above 1 = noisier.", above(0));
  fields.add(
      "shift_by_size", config.shift_by_size,
      "flow: multiply the shift by sqrt(pixels / 512^2) sqrt(latent frames) (Open-Sora 1.2).");
  fields.add("toward_data", config.toward_data,
             "flow: the model predicts data - noise, as Open-Sora 1.2's checkpoints do.");
}

Objective make_objective(const ObjectiveConfig& config, bool learned_variance) {
  if (config.kind == ObjectiveConfig::Kind::kIddpm) {
    return Iddpm(config.timesteps, learned_variance);
  }
  return RectifiedFlow{.times = config.times,
                       .logit_mean = config.logit_mean,
                       .logit_std = config.logit_std,
                       .schedule = {.shift = config.shift},
                       .toward_data = config.toward_data,
                       .shift_by_size = config.shift_by_size};
}

}  // namespace kinora::diffusion
