#include "kinora/diffusion/objective_config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/speedit.h"

namespace kinora::diffusion {

namespace {

std::vector<double> betas_of(const ObjectiveConfig& config) {
  const auto [start, end] = scaled_ends(config);
  std::vector<double> betas = make_betas(config.betas, config.timesteps, start, end);
  if (config.snr_shift != 1.0) {
    betas = shifted_snr(betas, config.snr_shift);
  }
  return config.zero_terminal_snr ? zero_terminal_snr(betas) : betas;
}

}  // namespace

void describe(Fields& fields, ObjectiveConfig& config) {
  using Kind = ObjectiveConfig::Kind;
  using Sampling = ObjectiveConfig::TimestepSampling;
  using Times = RectifiedFlow::Times;
  using Weights = LossWeights::Kind;
  const auto scope = fields.scope("objective");
  const auto is_chain = [&config] { return config.kind == Kind::kIddpm; };
  fields.add("kind", config.kind, {{"iddpm", Kind::kIddpm}, {"flow", Kind::kFlow}},
             "What the model learns: objective.prediction (and its variance) on a discrete chain, "
             "or the velocity of a rectified flow. docs/objectives.md has the formulas.");
  fields
      .add("prediction", config.prediction,
           {{"eps", Prediction::kEps}, {"sample", Prediction::kData}, {"v", Prediction::kV}},
           "iddpm: what is predicted: the noise, the data, or v of Salimans and Ho 2022.")
      .check("be eps for flow, whose prediction is the velocity",
             [&config, is_chain] { return is_chain() || config.prediction == Prediction::kEps; });
  fields.add("timesteps", config.timesteps, "iddpm: length of the chain.", between(21, 1e6));
  fields
      .add("betas", config.betas,
           {{"linear", BetaCurve::kLinear},
            {"scaled_linear", BetaCurve::kScaledLinear},
            {"squared_cosine", BetaCurve::kSquaredCosine}},
           "iddpm: how beta grows; scaled_linear = its square root evenly, as Stable Diffusion.")
      .check("be linear for flow, which has no betas",
             [&config, is_chain] { return is_chain() || config.betas == BetaCurve::kLinear; });
  fields
      .add("beta_start", config.beta_start,
           "linear, scaled_linear: the first beta of a chain of 1000 timesteps. Chains of other "
           "lengths take it times 1000 / timesteps.",
           above(0, 1000))
      .check("be at most objective.beta_end",
             [&config] { return config.beta_start <= config.beta_end; });
  fields
      .add("beta_end", config.beta_end,
           "The last beta likewise; Stable Diffusion's are 0.00085 and 0.012.", above(0, 1000))
      .check("be less than objective.timesteps / 1000",
             [&config] { return scaled_ends(config).second < 1.0; });
  fields
      .add("snr_shift", config.snr_shift,
           "iddpm: signal over noise is everywhere so many times smaller, before "
           "zero_terminal_snr (CogVideoX-2B: 3).",
           above(0, 1000))
      .check("be 1 for flow, whose shift does that work (objective.shift)",
             [&config, is_chain] { return is_chain() || config.snr_shift == 1.0; });
  fields
      .add("zero_terminal_snr", config.zero_terminal_snr,
           "iddpm: rescale the betas so that the chain ends in pure noise (Lin et al. 2024).")
      .check("be false for flow, which ends in pure noise anyway",
             [&config, is_chain] { return is_chain() || !config.zero_terminal_snr; })
      .check(
          "be false for objective.prediction=eps: predicted noise says nothing of the data where "
          "there is no signal. Hint: objective.prediction=v",
          [&config, is_chain] {
            return !is_chain() || !config.zero_terminal_snr ||
                   config.prediction != Prediction::kEps;
          });
  fields
      .add("loss_weights", config.weights.kind,
           {{"none", Weights::kNone}, {"min_snr", Weights::kMinSnr}, {"p2", Weights::kP2}},
           "iddpm: weight of the squared error by its timestep: min-SNR (Hang et al. 2023) or P2 "
           "(Choi et al. 2022).")
      .check("be none for flow, where the distribution of t does that work (objective.times)",
             [&config, is_chain] { return is_chain() || config.weights.kind == Weights::kNone; });
  fields.add("min_snr_gamma", config.weights.min_snr_gamma, "min_snr: the SNR is cut to this.",
             above(0, 1e6));
  fields.add("p2_k", config.weights.p2_k, "p2: 1 / (k + SNR)^gamma.", above(0, 1e6));
  fields.add("p2_gamma", config.weights.p2_gamma, "p2: its exponent.", between(0, 100));
  fields
      .add("noise_offset", config.noise.offset,
           "iddpm: training adds this times a normal number, the same for all of a channel, to the "
           "noise (offset noise), so that brightness is learned too; 0.05 to 0.1 are usual.",
           between(0, 10))
      .check("be 0 for flow, which draws from white noise",
             [&config, is_chain] { return is_chain() || config.noise.offset == 0.0; });
  fields
      .add("pyramid_noise", config.noise.pyramid,
           "iddpm: training adds noise of half the sides times this, of a quarter times its square "
           "and so on (pyramid noise), at a variance of 1; 0.3 is usual, 0 = none.",
           {.min = 0, .max = 1, .min_open = false, .max_open = false})
      .check("be 0 for flow, which draws from white noise",
             [&config, is_chain] { return is_chain() || config.noise.pyramid == 0.0; });
  fields
      .add("timestep_sampling", config.timestep_sampling,
           {{"uniform", Sampling::kUniform},
            {"importance", Sampling::kImportance},
            {"speedit", Sampling::kSpeedit}},
           "iddpm: how t is drawn; importance = loss-second-moment of IDDPM, speedit = Wang et al. "
           "2024, with loss_weights p2.")
      .check("be uniform for flow", [&config, is_chain] {
        return is_chain() || config.timestep_sampling == Sampling::kUniform;
      });
  fields.add("times", config.times,
             {{"uniform", Times::kUniform}, {"logit_normal", Times::kLogitNormal}},
             "flow: how t is drawn.");
  fields.add("logit_mean", config.logit_mean, "flow: mean of the logit of t; above 0 = noisier.",
             between(-100, 100));
  fields.add("logit_std", config.logit_std, "flow: standard deviation of the logit of t.",
             above(0, 100));
  fields.add("shift", config.shift,
             "flow: resolution shift of t, in training and sampling; above 1 = noisier.",
             above(0, 1000));
  fields.add(
      "shift_by_size", config.shift_by_size,
      "flow: multiply the shift by sqrt(pixels / 512^2) sqrt(latent frames) (Open-Sora 1.2).");
  fields
      .add("shift_by_tokens", config.shift_by_tokens,
           "flow: multiply the shift by one whose logarithm is these two numbers at shift_tokens "
           "tokens of the model, and on a line through them elsewhere (Flux: [0.5, 1.15]); [] = "
           "not.",
           between(-10, 10))
      .check("be [] or two numbers, and [] beside shift_by_size", [&config] {
        return config.shift_by_tokens.empty() ||
               (config.shift_by_tokens.size() == 2 && !config.shift_by_size);
      });
  fields
      .add("shift_tokens", config.shift_tokens,
           "flow: the two numbers of tokens that shift_by_tokens is said of (LTX-Video: "
           "[1024, 4096]).",
           between(1, 1e9))
      .check("be two numbers, the second greater",
             [&config] {
               return config.shift_tokens.size() == 2 &&
                      config.shift_tokens[0] < config.shift_tokens[1];
             })
      .check("be [256, 4096] without shift_by_tokens", [&config] {
        return !config.shift_by_tokens.empty() ||
               config.shift_tokens == ObjectiveConfig{}.shift_tokens;
      });
  fields
      .add(
          "token_shift", config.token_shift,
          {{"flux", RectifiedFlow::TokenShift::kFlux},
           {"opensora2", RectifiedFlow::TokenShift::kOpenSora2}},
          "flow: what shift_by_tokens is: flux, as it says; opensora2, its numbers are shifts, not "
          "their logarithms, tokens those of one frame, and the shift is multiplied by sqrt(latent "
          "frames) (Open-Sora 2: [1, 3]).")
      .check("be flux without shift_by_tokens, and of opensora2 two numbers above 0", [&config] {
        return config.token_shift == RectifiedFlow::TokenShift::kFlux ||
               (!config.shift_by_tokens.empty() &&
                std::ranges::all_of(config.shift_by_tokens,
                                    [](double shift) { return shift > 0.0; }));
      });
  fields
      .add("shift_chunk", config.shift_chunk,
           "flow: shift_by_size leaves out the first latent frame of every so many (Open-Sora 1.3: "
           "5); 0 = it counts all.",
           between(0, 1e6))
      .check("not be 1", [&config] { return config.shift_chunk != 1; });
  fields.add("toward_data", config.toward_data,
             "flow: the model predicts data - noise, as Open-Sora 1.2's checkpoints do.");
  fields
      .add(
          "levels", config.levels,
          "flow: the noise levels that are trained, from the first to the second, each as often as "
          "the others of them as without it (an expert of Wan 2.2: [0.875, 1] or [0, 0.875]).",
          between(0, 1))
      .check("be two numbers, the second greater",
             [&config] { return config.levels.size() == 2 && config.levels[0] < config.levels[1]; })
      .check("be [0, 1] for iddpm", [&config, is_chain] {
        return !is_chain() || config.levels == ObjectiveConfig{}.levels;
      });
}

std::pair<double, double> scaled_ends(const ObjectiveConfig& config) {
  const double scale = static_cast<double>(kDdpmTimesteps) / static_cast<double>(config.timesteps);
  return {scale * config.beta_start, scale * config.beta_end};
}

Objective make_objective(const ObjectiveConfig& config, bool learned_variance) {
  if (config.kind == ObjectiveConfig::Kind::kIddpm) {
    IddpmOptions options{.betas = betas_of(config),
                         .prediction = config.prediction,
                         .learned_variance = learned_variance,
                         .weights = config.weights,
                         .noise = config.noise};
    if (config.timestep_sampling == ObjectiveConfig::TimestepSampling::kSpeedit) {
      options.timestep_probabilities = speedit_probabilities(alphas_cumprod(options.betas));
    }
    return Iddpm(options);
  }
  return RectifiedFlow{.times = config.times,
                       .logit_mean = config.logit_mean,
                       .logit_std = config.logit_std,
                       .schedule = {.shift = config.shift},
                       .levels = {config.levels[0], config.levels[1]},
                       .toward_data = config.toward_data,
                       .shift_by_size = config.shift_by_size,
                       .shift_by_tokens = config.shift_by_tokens,
                       .shift_tokens = config.shift_tokens,
                       .token_shift = config.token_shift,
                       .shift_chunk = config.shift_chunk};
}

}  // namespace kinora::diffusion
