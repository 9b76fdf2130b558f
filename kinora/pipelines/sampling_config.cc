#include "kinora/pipelines/sampling_config.h"

#include <cmath>
#include <optional>
#include <utility>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/diffusion/chain_solvers.h"
#include "kinora/diffusion/deis.h"
#include "kinora/diffusion/dpm_solver.h"
#include "kinora/diffusion/sa_solver.h"
#include "kinora/diffusion/sigma_solvers.h"
#include "kinora/diffusion/unipc.h"

namespace kinora::pipelines {

using Method = SamplingConfig::Method;

namespace {

void describe_cache(Fields& fields, diffusion::StepCacheConfig& cache) {
  using Kind = diffusion::StepCacheConfig::Kind;
  fields.add(
      "cache", cache.kind,
      {{"none", Kind::kNone},
       {"first_block", Kind::kFirstBlock},
       {"tea", Kind::kTea},
       {"pab", Kind::kPab}},
      "Of `kinora sample`: what a transformer's blocks made at earlier steps stands for what "
      "they would make now. first_block, tea: of all of them, while little changes; pab: of "
      "attention, within ranges of noise levels. Pictures change.");
  fields.add("cache_threshold", cache.threshold,
             "first_block: relative change of what the first block adds, up to which the others "
             "are left out. tea: sum of the relative changes of what it reads, up to which all "
             "are. 0 = none is.",
             between(0, 1e6));
  fields.add("cache_order", cache.order,
             "first_block, tea: what stands for what blocks would make is forecast over the noise "
             "levels by a polynomial of this degree. 0 = it is what they made last.",
             between(0, 3));
  fields.add("cache_polynomial", cache.polynomial,
             "tea: makes of a change what is summed, as published for some models; highest power "
             "first. [] = the change itself.",
             between(-1e9, 1e9));
  fields
      .add("cache_ranges", cache.ranges,
           "pab: how far the noise level may fall while results stand: of attention in space, in "
           "time, to texts, and of MLPs. 0 = they never do.",
           between(0, 1))
      .check("be four numbers", [&cache] { return cache.ranges.size() == 4; });
  fields
      .add("cache_interval", cache.interval,
           "Noise levels [low, high] within which anything is left out. [] = all, of pab "
           "[0.45, 0.93].",
           between(0, 1))
      .check("be none or two numbers, low <= high", [&cache] {
        return cache.interval.empty() ||
               (cache.interval.size() == 2 && cache.interval[0] <= cache.interval[1]);
      });
  fields.add("cache_gib", cache.most_gib,
             "What a batch may keep at most of either, or of patches' keys and values, in GiB.",
             between(0, 1e6));
  fields.add(
      "patches", cache.patches,
      "Of `kinora sample`: a transformer computes the tokens of a sample in so many patches, "
      "one behind the other, with the keys and values that the others had last. So ranks of "
      "--pipeline have work on one sample. Pictures change. 1 = all tokens together.",
      between(1, 1e4));
  fields.add("patch_warmup", cache.patch_warmup,
             "patches: so many steps compute all tokens together at first.", between(1, 1e4));
}

}  // namespace

void describe(Fields& fields, SamplingConfig& config) {
  using diffusion::GuidanceChannels;
  using diffusion::Spacing;
  using Variance = SamplingConfig::Variance;
  using SecondOrder = SamplingConfig::SecondOrder;
  using diffusion::SigmaSpacing;
  fields.add("method", config.method,
             {{"auto", Method::kAuto},
              {"ddpm", Method::kDdpm},
              {"ddim", Method::kDdim},
              {"plms", Method::kPlms},
              {"ipndm", Method::kIpndm},
              {"dpm++", Method::kDpm},
              {"dpm++_sde", Method::kDpmSde},
              {"dpm++_sde_chain", Method::kDpmSdeChain},
              {"dpm++_single", Method::kDpmSingle},
              {"deis", Method::kDeis},
              {"unipc", Method::kUniPc},
              {"sa_solver", Method::kSaSolver},
              {"euler", Method::kEuler},
              {"euler_ancestral", Method::kEulerAncestral},
              {"heun", Method::kHeun},
              {"dpm2", Method::kDpm2},
              {"dpm2_ancestral", Method::kDpm2Ancestral},
              {"dpm2_sde", Method::kDpm2Sde},
              {"lms", Method::kLms},
              {"lcm", Method::kLcm},
              {"tcd", Method::kTcd},
              {"consistency", Method::kConsistency}},
             "Sampler; auto = ddpm for objective.kind iddpm, euler for flow. docs/sampling.md says "
             "which are for which.");
  fields.add("steps", config.steps,
             "Sampling steps; heun and dpm2* ask the model twice in all but the last.",
             between(1, static_cast<double>(kMostSteps)));
  fields.add("spacing", config.spacing,
             {{"dit", Spacing::kDit},
              {"leading", Spacing::kLeading},
              {"trailing", Spacing::kTrailing},
              {"linspace", Spacing::kLinspace}},
             "iddpm: which timesteps are visited. For methods that also take fractions of "
             "timesteps, dit is the same as linspace.");
  fields.add("steps_offset", config.steps_offset,
             "iddpm: added to the timesteps of spacing leading.", between(0, 1e6));
  fields.add("sigmas", config.sigmas,
             {{"timesteps", SigmaSpacing::kTimesteps},
              {"karras", SigmaSpacing::kKarras},
              {"exponential", SigmaSpacing::kExponential},
              {"beta", SigmaSpacing::kBeta},
              {"ays", SigmaSpacing::kAys},
              {"gits", SigmaSpacing::kGits},
              {"linear_quadratic", SigmaSpacing::kLinearQuadratic}},
             "All methods but ddpm, ddim, plms, dpm++_sde_chain, lcm and tcd: noise levels; "
             "timesteps = those of spacing or of the flow. ays and gits are tuned for Stable "
             "Diffusion 1. linear_quadratic is of flows: half of the steps go down to 0.975, the "
             "others along a parabola (LTX-Video from 0.9.5 on).");
  fields.add(
      "order", config.order,
      "Order of the method: 1 to 3 for dpm++*, deis and unipc, 1 to 4 for sa_solver and lms. "
      "0 = 2, for lms 4.",
      between(0, 4));
  fields.add("second_order", config.second_order,
             {{"midpoint", SecondOrder::kMidpoint}, {"heun", SecondOrder::kHeun}},
             "dpm++*: form of the steps of second order.");
  fields.add("variance", config.variance,
             {{"auto", Variance::kAuto},
              {"fixed_small", Variance::kFixedSmall},
              {"fixed_large", Variance::kFixedLarge},
              {"learned_range", Variance::kLearnedRange}},
             "ddpm: of the noise; auto = learned_range where the model learned it, else "
             "fixed_large.");
  fields.add(
      "eta", config.eta,
      "ddim, tcd, sa_solver: 0 deterministic, 1 as noisy as ddpm, lcm or the SDE. sa_solver is "
      "noisy in the middle of the schedule only.",
      between(0, 1));
  fields.add("end_clean", config.end_clean,
             "ddim, plms, dpm++_sde_chain, deis, sa_solver, tcd: the last step leads to clean "
             "data; false: to the "
             "noise of timestep 0, as Stable Diffusion's schedulers say (set_alpha_to_one).");
  fields.add("clip_denoised", config.clip_denoised,
             "ddpm, ddim, dpm++*, deis, unipc, sa_solver, heun, lcm, consistency: clip the "
             "estimate of the image to [-1, 1]; for "
             "pixels, not latents.");
  fields
      .add("threshold", config.threshold,
           "The same without ddpm and ddim: dynamic thresholding of the estimate of the image at "
           "this "
           "quantile, such as 0.995; 0 = none. For pixels.",
           between(0, 1))
      .check("be 0 where clip_denoised is set",
             [&config] { return config.threshold == 0.0 || !config.clip_denoised; });
  fields.add("threshold_max", config.threshold_max, "Upper end of that quantile's value.",
             between(1, 1e6));
  fields.add(
      "whole_timesteps", config.whole_timesteps,
      "Flows, all methods but euler: the model is told times that are cut off to thousandths, "
      "as diffusers' UniPC does (Wan).");
  fields
      .add("last_level", config.last_level,
           "Flows: noise levels are stretched so that the last before 0 is this one (LTX-Video: "
           "0.1); 0 = they are not.",
           between(0, 1))
      .check("be less than 1", [&config] { return config.last_level < 1.0; });
  fields.add(
      "low_noise", config.low_noise,
      "Flows: below this noise level, 0 to 1, low_noise_model predicts (the second expert of "
      "Wan 2.2); 0 = there is none.",
      between(0, 1));
  fields.add("low_noise_model", config.low_noise_model,
             "Weights of that model, a folder or file. It is as large as the first.");
  fields.add("low_noise_guidance", config.low_noise_guidance,
             "Guidance scale of that model; 0 = as the first.", between(0, kMostGuidance));
  fields.add("guidance", config.guidance, "Classifier-free guidance scale; 1 = none.",
             between(0, kMostGuidance));
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
  fields.add("guidance_alternates_after", config.guidance_alternates_after,
             "After so many steps guidance is on in every other step only; 0 = it is on in all. "
             "Open-Sora 1.3: 10.",
             between(0, static_cast<double>(kMostSteps)));
  fields.add("guidance_dynamic", config.guidance_dynamic,
             "In each of n steps the scale is 1 + guidance (1 - cos(pi ((n - t) / n)^5)) / 2 at "
             "timestep t of a chain, as diffusers' use_dynamic_cfg has it (CogVideoX).");
  fields.add("guidance_rescale", config.guidance_rescale,
             "How far guidance keeps the deviation of the conditional prediction: 0 = not at all, "
             "0.7 = as Lin et al. 2024 advise.",
             between(0, 1));
  fields.add(
      "given_guidance", config.given_guidance,
      "model.given_embedders: guidance scale of given frames, in the first step and the last "
      "frame; it falls to 1 until the last step, and to 1 at the first frame. U-Nets that change a "
      "picture: guidance scale of that picture. 1 = none.",
      between(1, kMostGuidance));
  fields.add("given_noise", config.given_noise,
             "Clips along a flow that Euler's method draws, whose given frames stand in the clip: "
             "in each step, at time t, these have so much times t^2 times new noise (diffusers' "
             "image_cond_noise_scale), which keeps what follows a single picture in motion. 0 = "
             "they are shown as they are.",
             between(0, 1));
  fields.add("fp8", config.fp8,
             "Of `kinora sample`: compute the products of a transformer's blocks in 8-bit floats "
             "(Ada, Hopper or newer; bf16 or fp16). Pictures "
             "change a little.");
  describe_cache(fields, config.cache);
  fields.add("batch_invariant", config.batch_invariant,
             "Draw and decode the samples of a batch one by one, so that each is the same in every "
             "bit whatever is drawn beside it. What that costs is measured and said.");
}

diffusion::Guidance SamplingConfig::guidance_of() const {
  return {.scale = guidance,
          .channels = guidance_channels,
          .low = guidance_interval[0],
          .high = guidance_interval[1],
          .alternates_after = guidance_alternates_after,
          .is_dynamic = guidance_dynamic,
          .rescale = guidance_rescale,
          .given_scale = given_guidance,
          .low_noise = low_noise,
          .low_noise_scale = low_noise_guidance > 0.0 ? low_noise_guidance : guidance};
}

namespace {

using diffusion::Limit;
using diffusion::NoiseLevels;
using diffusion::SolverPlan;

constexpr int64_t kDefaultOrder = 2;
constexpr int64_t kDefaultLmsOrder = 4;
constexpr double kTimesteps = 1000.0;  // of flows in diffusers
// The part of the schedule in which SA-Solver adds noise (SASolverScheduler's tau_func).
constexpr double kTauFrom = 0.2;
constexpr double kTauTo = 0.8;

Limit limit_of(const SamplingConfig& config) {
  if (config.threshold > 0.0) {
    return {
        .kind = Limit::Kind::kThreshold, .max = config.threshold_max, .ratio = config.threshold};
  }
  return {.kind = config.clip_denoised ? Limit::Kind::kClip : Limit::Kind::kNone};
}

void check_unlimited(const SamplingConfig& config) {
  KINORA_CHECK(!config.clip_denoised && config.threshold == 0.0, kConfig,
               "[sample] sample.clip_denoised and sample.threshold must be off for this method, "
               "which has no estimate of the image to limit. Hint: dpm++, unipc or heun");
}

diffusion::DpmSolver dpm_of(const SamplingConfig& config) {
  using Algorithm = diffusion::DpmSolver::Algorithm;
  return {.algorithm = config.method == Method::kDpmSde ? Algorithm::kSdeDpmSolverPlus
                                                        : Algorithm::kDpmSolverPlus,
          .order = config.order > 0 ? config.order : kDefaultOrder,
          .heun = config.second_order == SamplingConfig::SecondOrder::kHeun,
          .limit = limit_of(config)};
}

/// Methods whose only choice is that of the noise levels; nothing for others. length: of the
/// denoiser's times.
std::optional<SolverPlan> plan_of_levels(const SamplingConfig& config, const NoiseLevels& levels,
                                         double length) {
  const int64_t order = config.order > 0 ? config.order : kDefaultOrder;
  switch (config.method) {
    case Method::kDpm:
    case Method::kDpmSde:
      return diffusion::dpm_multistep(levels, dpm_of(config));
    case Method::kDpmSingle:
      return diffusion::dpm_singlestep(levels, dpm_of(config));
    case Method::kUniPc:
      return diffusion::unipc(levels, {.order = order, .limit = limit_of(config)});
    case Method::kDeis:
      return diffusion::deis(levels, {.order = order, .limit = limit_of(config)});
    case Method::kIpndm:
      check_unlimited(config);
      return diffusion::ipndm(levels);
    case Method::kSaSolver:
      return diffusion::sa_solver(levels, {.predictor_order = order,
                                           .corrector_order = order,
                                           .tau = config.eta,
                                           .tau_from = kTauFrom * length,
                                           .tau_to = kTauTo * length,
                                           .limit = limit_of(config)});
    case Method::kEuler:
      check_unlimited(config);
      return diffusion::euler(levels);
    case Method::kEulerAncestral:
      check_unlimited(config);
      return diffusion::euler_ancestral(levels);
    case Method::kHeun:
      return diffusion::heun(levels, limit_of(config));
    case Method::kDpm2:
      check_unlimited(config);
      return diffusion::dpm2(levels);
    case Method::kDpm2Ancestral:
      check_unlimited(config);
      return diffusion::dpm2_ancestral(levels);
    case Method::kDpm2Sde:
      check_unlimited(config);
      return diffusion::dpm_sde(levels);
    case Method::kConsistency:
      return diffusion::renoised(levels, {.limit = limit_of(config)});
    case Method::kLms:
      check_unlimited(config);
      return diffusion::linear_multistep(levels,
                                         config.order > 0 ? config.order : kDefaultLmsOrder);
    case Method::kAuto:
    case Method::kDdpm:
    case Method::kDdim:
    case Method::kPlms:
    case Method::kDpmSdeChain:
    case Method::kLcm:
    case Method::kTcd:
      break;
  }
  return std::nullopt;
}

/// Whether the method's levels are those of x at unit variance rather than of x_0 + sigma noise.
bool preserves_variance(Method method) {
  return method == Method::kDpm || method == Method::kDpmSde || method == Method::kDpmSingle ||
         method == Method::kDeis || method == Method::kIpndm || method == Method::kUniPc ||
         method == Method::kSaSolver;
}

/// Which levels more than those of its steps the method evaluates at.
diffusion::MiddleSigma middle_of(Method method) {
  return method == Method::kDpm2 || method == Method::kDpm2Sde ? diffusion::MiddleSigma::kOfNext
         : method == Method::kDpm2Ancestral                    ? diffusion::MiddleSigma::kOfLowest
                                                               : diffusion::MiddleSigma::kNone;
}

/// Levels from step `first` on.
NoiseLevels from_step(NoiseLevels levels, Method method, int64_t first) {
  const int64_t of_step = middle_of(method) == diffusion::MiddleSigma::kNone ? 1 : 2;
  levels.levels.erase(levels.levels.begin(), levels.levels.begin() + first * of_step);
  return levels;
}

PartialSampler begun_at(diffusion::Sampler sampler, const diffusion::NoiseLevel& level) {
  return {.sampler = std::move(sampler), .alpha = level.alpha, .sigma = level.sigma};
}

PartialSampler begun_at(diffusion::Sampler sampler, double alpha_bar) {
  return {.sampler = std::move(sampler),
          .alpha = std::sqrt(alpha_bar),
          .sigma = std::sqrt(1.0 - alpha_bar)};
}

NoiseLevels chain_levels(const SamplingConfig& config, const diffusion::Iddpm& iddpm) {
  using diffusion::TimestepConvention;
  const bool preserves = preserves_variance(config.method);
  const int64_t num_timesteps = iddpm.schedule().num_timesteps();
  const bool ends_noisy =
      !config.end_clean && (config.method == Method::kDeis || config.method == Method::kSaSolver);
  const diffusion::Sigmas sigmas = diffusion::chain_sigmas(
      iddpm.schedule().alphas_cumprod,
      {.num_steps = config.steps,
       .convention = preserves ? TimestepConvention::kDpmSolver : TimestepConvention::kSigmas,
       .spacing = config.spacing,
       .steps_offset = config.steps_offset,
       .sigmas = config.sigmas,
       .final_sigma = ends_noisy ? diffusion::FinalSigma::kMin : diffusion::FinalSigma::kZero,
       .whole_karras = config.method == Method::kDpm2 || config.method == Method::kDpm2Ancestral,
       .middle = middle_of(config.method)});
  return preserves ? diffusion::variance_preserving(sigmas, iddpm.prediction(), num_timesteps)
                   : diffusion::variance_exploding(sigmas, iddpm.prediction(), num_timesteps,
                                                   config.spacing != diffusion::Spacing::kLeading);
}

PartialSampler flow_sampler(const SamplingConfig& config, const diffusion::RectifiedFlow& flow,
                            double size_shift, int64_t first) {
  diffusion::FlowSchedule schedule = flow.schedule;
  schedule.shift *= size_shift;
  const bool of_timesteps =
      config.sigmas == diffusion::SigmaSpacing::kTimesteps && config.last_level == 0.0;
  const std::optional<double> terminal =
      config.last_level > 0.0 ? std::optional(config.last_level) : std::nullopt;
  if (config.method == Method::kAuto || config.method == Method::kEuler) {
    std::vector<double> times = diffusion::euler_times(schedule, config.steps);
    const bool is_linspace = config.spacing == diffusion::Spacing::kLinspace;
    if (!of_timesteps || is_linspace) {
      times =
          diffusion::flow_sigmas({.num_steps = config.steps,
                                  .ends = is_linspace ? diffusion::FlowSigmas::Ends::kTrainedLevels
                                                      : diffusion::FlowSigmas::Ends::kWhole,
                                  .shift = schedule.shift,
                                  .terminal = terminal,
                                  .sigmas = config.sigmas})
              .sigmas;
    }
    times.erase(times.begin(), times.begin() + first);
    const double start = times.front();
    return {.sampler = diffusion::FlowEulerSampler{.times = std::move(times),
                                                   .toward_data = flow.toward_data,
                                                   .given_noise = config.given_noise},
            .alpha = 1.0 - start,
            .sigma = start};
  }
  // Solvers in the logarithm of signal over noise cannot begin without any signal.
  diffusion::Sigmas sigmas = diffusion::flow_sigmas(
      {.num_steps = config.steps,
       .ends = preserves_variance(config.method) ? diffusion::FlowSigmas::Ends::kAboveZero
                                                 : diffusion::FlowSigmas::Ends::kWhole,
       .shift = schedule.shift,
       .terminal = terminal,
       .sigmas = config.sigmas});
  if (config.whole_timesteps) {
    for (double& time : sigmas.timesteps) {
      time = std::trunc(time * kTimesteps) / kTimesteps;
    }
  }
  NoiseLevels levels =
      from_step(diffusion::along_flow(sigmas, diffusion::Prediction::kFlow), config.method, first);
  if (flow.toward_data) {
    for (diffusion::NoiseLevel& level : levels.levels) {
      level.to_clean.prediction = -level.to_clean.prediction;
    }
  }
  const bool has_middles = middle_of(config.method) != diffusion::MiddleSigma::kNone;
  const std::optional<SolverPlan> plan = config.method == Method::kEulerAncestral || has_middles
                                             ? std::nullopt
                                             : plan_of_levels(config, levels, /*length=*/1.0);
  KINORA_CHECK(plan.has_value(), kConfig,
               "[sample] sample.method must be euler, heun, lms, dpm++, dpm++_sde, dpm++_single, "
               "deis, ipndm, unipc, sa_solver or consistency for a flow model. Hint: auto chooses "
               "euler");
  return begun_at(*plan, levels.levels.front());
}

diffusion::Variance variance_of(const SamplingConfig& config, bool learned) {
  using Variance = SamplingConfig::Variance;
  switch (config.variance) {
    case Variance::kAuto:
      return learned ? diffusion::Variance::kLearnedRange : diffusion::Variance::kFixedLarge;
    case Variance::kFixedSmall:
      return diffusion::Variance::kFixedSmall;
    case Variance::kFixedLarge:
      return diffusion::Variance::kFixedLarge;
    case Variance::kLearnedRange:
      KINORA_CHECK(learned, kConfig,
                   "[sample] sample.variance must be fixed_small or fixed_large for this model, "
                   "which learned none (model.learn_sigma), got learned_range");
      return diffusion::Variance::kLearnedRange;
  }
  KINORA_UNREACHABLE("[sample] unknown variance");
}

bool goes_by_levels(Method method) {
  return preserves_variance(method) || middle_of(method) != diffusion::MiddleSigma::kNone ||
         method == Method::kEuler || method == Method::kEulerAncestral || method == Method::kHeun ||
         method == Method::kLms || method == Method::kConsistency;
}

PartialSampler chain_sampler(const SamplingConfig& config, const diffusion::Iddpm& iddpm,
                             int64_t first) {
  const diffusion::DiscreteSchedule& trained = iddpm.schedule();
  if (goes_by_levels(config.method)) {
    const NoiseLevels levels = from_step(chain_levels(config, iddpm), config.method, first);
    return begun_at(
        plan_of_levels(config, levels, static_cast<double>(trained.num_timesteps())).value(),
        levels.levels.front());
  }
  const auto level_of = [&trained](int64_t timestep) {
    return trained.alphas_cumprod[static_cast<size_t>(timestep)];
  };
  if (config.method == Method::kLcm || config.method == Method::kTcd) {
    const diffusion::ChainWalk walk{
        .alphas_cumprod = trained.alphas_cumprod,
        .timesteps = diffusion::lcm_timesteps(trained.num_timesteps(), config.steps),
        .prediction = iddpm.prediction(),
        .limit = limit_of(config),
        .first = first};
    const double start = level_of(walk.timesteps[static_cast<size_t>(first)]);
    if (config.method == Method::kLcm) {
      return begun_at(diffusion::lcm(walk), start);
    }
    check_unlimited(config);
    return begun_at(diffusion::tcd(walk, {.eta = config.eta, .end_clean = config.end_clean}),
                    start);
  }
  const std::vector<int64_t> visited = diffusion::chain_timesteps(
      trained.num_timesteps(), config.spacing, config.steps, config.steps_offset);
  const double start = level_of(visited[static_cast<size_t>(first)]);
  if (config.method == Method::kPlms) {
    check_unlimited(config);
    return begun_at(diffusion::plms({.alphas_cumprod = trained.alphas_cumprod,
                                     .timesteps = visited,
                                     .prediction = iddpm.prediction(),
                                     .first = first},
                                    {.end_clean = config.end_clean,
                                     .target = diffusion::StepTarget::kNextTimestep}),
                    start);
  }
  if (config.method == Method::kDpmSdeChain) {
    return begun_at(diffusion::dpm_sde_of_chain({.alphas_cumprod = trained.alphas_cumprod,
                                                 .timesteps = visited,
                                                 .prediction = iddpm.prediction(),
                                                 .limit = limit_of(config),
                                                 .first = first},
                                                config.end_clean),
                    start);
  }
  KINORA_CHECK(config.threshold == 0.0, kConfig,
               "[sample] sample.threshold must be 0 for ddpm and ddim. Hint: sample.clip_denoised, "
               "or another method");
  diffusion::DiscreteSchedule schedule =
      diffusion::respaced(trained, std::vector<int64_t>(visited.rbegin(), visited.rend() - first));
  if (config.method == Method::kDdim) {
    if (!config.end_clean) {
      schedule.alphas_cumprod_prev.front() = trained.alphas_cumprod.front();
    }
    return begun_at(diffusion::DdimSampler{.schedule = schedule,
                                           .eta = config.eta,
                                           .clip_denoised = config.clip_denoised,
                                           .prediction = iddpm.prediction()},
                    start);
  }
  return begun_at(diffusion::DdpmSampler{.schedule = schedule,
                                         .variance = variance_of(config, iddpm.learned_variance()),
                                         .clip_denoised = config.clip_denoised,
                                         .prediction = iddpm.prediction()},
                  start);
}

PartialSampler sampler_from(const SamplingConfig& config, const diffusion::Objective& objective,
                            double size_shift, int64_t first) {
  if (const auto* flow = std::get_if<diffusion::RectifiedFlow>(&objective)) {
    return flow_sampler(config, *flow, size_shift, first);
  }
  return chain_sampler(config, std::get<diffusion::Iddpm>(objective), first);
}

}  // namespace

diffusion::Sampler make_sampler(const SamplingConfig& config, const diffusion::Objective& objective,
                                double size_shift) {
  return sampler_from(config, objective, size_shift, /*first=*/0).sampler;
}

double initial_scale(const diffusion::Sampler& sampler) {
  const auto* plan = std::get_if<SolverPlan>(&sampler);
  return plan == nullptr ? 1.0 : plan->initial_scale;
}

PartialSampler make_partial_sampler(const SamplingConfig& config,
                                    const diffusion::Objective& objective, double size_shift,
                                    double strength) {
  KINORA_CHECK(strength > 0.0 && strength <= 1.0, kConfig,
               "[sample] strength must lie above 0 and at most at 1, got ", strength);
  const auto taken = static_cast<int64_t>(static_cast<double>(config.steps) * strength);
  KINORA_CHECK(taken >= 1, kConfig, "[sample] strength must leave at least one of ", config.steps,
               " steps, got ", strength, ". Hint: more --steps, or a greater --strength");
  return sampler_from(config, objective, size_shift, config.steps - taken);
}

}  // namespace kinora::pipelines
