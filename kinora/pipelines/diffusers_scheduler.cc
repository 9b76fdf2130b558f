#include "kinora/pipelines/diffusers_scheduler.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/noise_levels.h"
#include "kinora/diffusion/prediction.h"
#include "kinora/diffusion/schedule.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

using diffusion::BetaCurve;
using diffusion::Prediction;
using nlohmann::json;

/// A value under its name in diffusers and in recipes.
template <typename T>
struct Named {
  T value;
  const char* diffusers;
  const char* recipe;
};

constexpr Named<Prediction> kPredictions[] = {{Prediction::kEps, "epsilon", "eps"},
                                              {Prediction::kData, "sample", "sample"},
                                              {Prediction::kV, "v_prediction", "v"}};
constexpr Named<BetaCurve> kCurves[] = {
    {BetaCurve::kLinear, "linear", "linear"},
    {BetaCurve::kScaledLinear, "scaled_linear", "scaled_linear"},
    {BetaCurve::kSquaredCosine, "squaredcos_cap_v2", "squared_cosine"}};

/// A scheduler's class, and what it does where its file does not say.
struct SchedulerClass {
  const char* name;
  const char* method;
  const char* spacing;  // null: it has one way
  bool clips;           // clip_sample
  const char* order;    // key of its order, which is 2; null: it has none
};
constexpr SchedulerClass kSchedulers[] = {
    {"DDPMScheduler", "ddpm", "leading", true, nullptr},
    {"DDIMScheduler", "ddim", "leading", true, nullptr},
    {"CogVideoXDDIMScheduler", "ddim", "leading", false, nullptr},
    {"CogVideoXDPMScheduler", "dpm++_sde_chain", "leading", false, nullptr},
    {"PNDMScheduler", "plms", "leading", false, nullptr},
    {"IPNDMScheduler", "ipndm", nullptr, false, nullptr},
    {"DPMSolverMultistepScheduler", "dpm++", "linspace", false, "solver_order"},
    {"DPMSolverSinglestepScheduler", "dpm++_single", nullptr, false, "solver_order"},
    {"DPMSolverSDEScheduler", "dpm2_sde", "linspace", false, nullptr},
    {"DEISMultistepScheduler", "deis", "linspace", false, "solver_order"},
    {"UniPCMultistepScheduler", "unipc", "linspace", false, "solver_order"},
    {"SASolverScheduler", "sa_solver", "linspace", false, "predictor_order"},
    {"EulerDiscreteScheduler", "euler", "linspace", false, nullptr},
    {"EulerAncestralDiscreteScheduler", "euler_ancestral", "linspace", false, nullptr},
    {"HeunDiscreteScheduler", "heun", "linspace", false, nullptr},
    {"KDPM2DiscreteScheduler", "dpm2", "linspace", false, nullptr},
    {"KDPM2AncestralDiscreteScheduler", "dpm2_ancestral", "linspace", false, nullptr},
    {"LMSDiscreteScheduler", "lms", "linspace", false, nullptr},
    {"LCMScheduler", "lcm", nullptr, false, nullptr},
    {"TCDScheduler", "tcd", nullptr, false, nullptr},
};
constexpr int64_t kDefaultSolverOrder = 2;
// Of LCM and TCD.
constexpr int64_t kLcmSteps = 50;
constexpr double kLcmScaling = 10.0;

/// The chain of a class whose file does not say.
struct DefaultChain {
  const char* curve = "linear";
  double beta_start = diffusion::kDdpmBetaStart;
  double beta_end = diffusion::kDdpmBetaEnd;
};
DefaultChain default_chain(std::string_view class_name) {
  for (const std::string_view name :
       {"LCMScheduler", "TCDScheduler", "CogVideoXDDIMScheduler", "CogVideoXDPMScheduler"}) {
    if (class_name == name) {
      return {.curve = "scaled_linear", .beta_start = 0.00085, .beta_end = 0.012};
    }
  }
  for (const std::string_view name : {"HeunDiscreteScheduler", "KDPM2DiscreteScheduler",
                                      "KDPM2AncestralDiscreteScheduler", "DPMSolverSDEScheduler"}) {
    if (class_name == name) {
      return {.beta_start = 0.00085, .beta_end = 0.012};
    }
  }
  return {};
}

const SchedulerClass& class_of(const DiffusersConfig& scheduler) {
  const auto name = scheduler.get<std::string>("_class_name", "");
  std::string known;
  for (const SchedulerClass& its : kSchedulers) {
    if (name == its.name) {
      return its;
    }
    known += (known.empty() ? "" : ", ") + std::string(its.name);
  }
  throw_error(ErrorKind::kConfig, "[diffusers] ", scheduler.path(), ": _class_name must be one of ",
              known, ", got ", io::in_quotes(name), ". Hint: give a recipe with --config");
}

/// Schedulers of CogVideoX, which read no limits, though their files may name some.
bool is_cogvideox(std::string_view class_name) {
  return class_name.starts_with("CogVideoX");
}
constexpr double kCogSnrShift = 3.0;

/// Options of schedulers that the recipe has no key for.
void check_known(const DiffusersConfig& scheduler, const SchedulerClass& its) {
  for (const char* key : {"euler_at_final", "use_lu_lambdas"}) {
    scheduler.require<bool>(key, false, false);
  }
  // Singlestep solvers choose by the number of steps.
  if (std::string_view(its.method) != "dpm++_single") {
    scheduler.require<bool>("lower_order_final", true, true);
  }
  scheduler.require<std::string>("final_sigmas_type", "zero", "zero");
  KINORA_CHECK(!scheduler.has("lambda_min_clipped"), kConfig, "[diffusers] ", scheduler.path(),
               ": lambda_min_clipped must be -Infinity, got a number");
  scheduler.require<std::string>("interpolation_type", "linear", "linear");
  scheduler.require<std::string>("timestep_type", "discrete", "discrete");
  if (scheduler.get<bool>("clip_sample", its.clips) && !is_cogvideox(its.name)) {
    scheduler.require<double>("clip_sample_range", 1.0, 1.0);
  }
  for (const char* key : {"sigma_min", "sigma_max"}) {
    KINORA_CHECK(!scheduler.has(key), kConfig, "[diffusers] ", scheduler.path(), ": ", key,
                 " must be null, got a number");
  }
}

/// The sigmas that these options choose.
const char* sigmas_of(const DiffusersConfig& scheduler) {
  for (const auto& [key, name] :
       {std::pair("use_karras_sigmas", "karras"),
        std::pair("use_exponential_sigmas", "exponential"), std::pair("use_beta_sigmas", "beta")}) {
    if (scheduler.get<bool>(key, false)) {
      return name;
    }
  }
  return "timesteps";
}

/// DPM-Solver's kinds and options.
void add_dpm(const DiffusersConfig& scheduler, json& sample) {
  const auto kind = scheduler.get<std::string>("algorithm_type", "dpmsolver++");
  const bool noisy = kind == "sde-dpmsolver++" && sample["method"] == "dpm++";
  KINORA_CHECK(noisy || kind == "dpmsolver++", kConfig, "[diffusers] ", scheduler.path(),
               ": algorithm_type must be dpmsolver++, of multistep also sde-dpmsolver++, got ",
               io::in_quotes(kind));
  if (noisy) {
    sample["method"] = "dpm++_sde";
  }
  sample["second_order"] = scheduler.get<std::string>("solver_type", "midpoint");
}

/// Options that some methods alone have.
void add_own(const DiffusersConfig& scheduler, json& sample) {
  const std::string method = sample["method"];
  if (method.starts_with("dpm++") && method != "dpm++_sde_chain") {
    add_dpm(scheduler, sample);
  } else if (method == "ddpm") {
    sample["variance"] = scheduler.get<std::string>("variance_type", "fixed_small");
  } else if (method == "ddim" || method == "dpm++_sde_chain") {
    sample["end_clean"] = scheduler.get<bool>("set_alpha_to_one", true);
  } else if (method == "plms") {
    scheduler.require<bool>("skip_prk_steps", true, false);
    sample["end_clean"] = scheduler.get<bool>("set_alpha_to_one", false);
  } else if (method == "ipndm") {
    // By itself it walks a chain of its own, in fractions of time.
    KINORA_CHECK(
        scheduler.has("beta_schedule"), kConfig, "[diffusers] ", scheduler.path(),
        ": an IPNDMScheduler must say the model's chain (beta_schedule, as a file that was "
        "made from another scheduler's does), got none");
  } else if (method == "unipc") {
    scheduler.require<bool>("predict_x0", true, true);
    scheduler.require<std::string>("solver_type", "bh2", "bh2");
  } else if (method == "deis") {
    sample["end_clean"] = false;
  } else if (method == "sa_solver") {
    scheduler.require<std::string>("algorithm_type", "data_prediction", "data_prediction");
    scheduler.require<int64_t>("corrector_order", sample["order"], kDefaultSolverOrder);
    KINORA_CHECK(!scheduler.has("tau_func"), kConfig, "[diffusers] ", scheduler.path(),
                 ": tau_func must be null, got ", scheduler.written("tau_func"));
    sample["end_clean"] = false;
    sample["eta"] = 1.0;
  } else if (method == "dpm2_sde") {
    KINORA_CHECK(!scheduler.has("noise_sampler_seed"), kConfig, "[diffusers] ", scheduler.path(),
                 ": noise_sampler_seed must be null, got ", scheduler.written("noise_sampler_seed"),
                 ". Hint: --seed decides all noise");
  } else if (method == "lcm" || method == "tcd") {
    scheduler.require<int64_t>("original_inference_steps", kLcmSteps, kLcmSteps);
    if (method == "lcm") {
      scheduler.require<double>("timestep_scaling", kLcmScaling, kLcmScaling);
    } else {
      sample["end_clean"] = false;
    }
  }
}

/// The recipe's name of config's value.
template <typename T, size_t kCount>
const char* recipe_name(const Named<T> (&names)[kCount], const DiffusersConfig& config,
                        const char* key, const char* otherwise) {
  const auto got = config.get<std::string>(key, otherwise);
  std::string known;
  for (const Named<T>& name : names) {
    if (got == name.diffusers) {
      return name.recipe;
    }
    known += (known.empty() ? "" : ", ") + std::string(name.diffusers);
  }
  throw_error(ErrorKind::kConfig, "[diffusers] ", config.path(), ": ", key, " must be one of ",
              known, ", got ", io::in_quotes(got));
}

template <typename T, size_t kCount>
const char* diffusers_name(const Named<T> (&names)[kCount], T value) {
  for (const Named<T>& name : names) {
    if (name.value == value) {
      return name.diffusers;
    }
  }
  KINORA_UNREACHABLE("[diffusers] a value without a name");
}

constexpr const char* kFlowEuler = "FlowMatchEulerDiscreteScheduler";

/// The keys below objective. A shift by the number of tokens is the pipeline's (Flux).
json flow_objective(const DiffusersConfig& scheduler) {
  scheduler.require<int64_t>("num_train_timesteps", diffusion::kDdpmTimesteps,
                             diffusion::kDdpmTimesteps);
  json objective = {{"kind", "flow"}, {"times", "logit_normal"}};
  if (!scheduler.get<bool>("use_dynamic_shifting", false)) {
    objective["shift"] = scheduler.get<double>("shift", 1.0);
    return objective;
  }
  scheduler.require<std::string>("time_shift_type", "exponential", "exponential");
  objective["shift_tokens"] = {scheduler.get<int64_t>("base_image_seq_len", diffusion::kFewTokens),
                               scheduler.get<int64_t>("max_image_seq_len", diffusion::kManyTokens)};
  objective["shift_by_tokens"] = {scheduler.get<double>("base_shift", 0.5),
                                  scheduler.get<double>("max_shift", 1.15)};
  return objective;
}

/// The keys below sample. With a shift by the number of tokens the pipeline gives levels from 1 to
/// 1 / N, else they go to the smallest that was trained.
json flow_sampling(const DiffusersConfig& scheduler) {
  for (const char* key : {"invert_sigmas", "stochastic_sampling"}) {
    scheduler.require<bool>(key, false, false);
  }
  return {{"method", "euler"},
          {"sigmas", sigmas_of(scheduler)},
          {"last_level", scheduler.get<double>("shift_terminal", 0.0)},
          {"spacing", scheduler.get<bool>("use_dynamic_shifting", false) ? "dit" : "linspace"}};
}

constexpr const char* kUniPc = "UniPCMultistepScheduler";

bool is_flow_of_unipc(const DiffusersConfig& scheduler) {
  return scheduler.is("_class_name", kUniPc) && scheduler.get<bool>("use_flow_sigmas", false);
}

/// The keys below objective of such a UniPC (Wan).
json unipc_flow_objective(const DiffusersConfig& scheduler) {
  scheduler.require<int64_t>("num_train_timesteps", diffusion::kDdpmTimesteps,
                             diffusion::kDdpmTimesteps);
  scheduler.require<std::string>("prediction_type", "flow_prediction", "epsilon");
  scheduler.require<bool>("use_dynamic_shifting", false, false);
  return {{"kind", "flow"},
          {"times", "logit_normal"},
          {"shift", scheduler.get<double>("flow_shift", 1.0)}};
}

/// The keys below sample. The model is told whole timesteps.
json unipc_flow_sampling(const DiffusersConfig& scheduler) {
  for (const char* key :
       {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "thresholding"}) {
    scheduler.require<bool>(key, false, false);
  }
  scheduler.require<bool>("predict_x0", true, true);
  scheduler.require<bool>("lower_order_final", true, true);
  scheduler.require<std::string>("solver_type", "bh2", "bh2");
  scheduler.require<std::string>("final_sigmas_type", "zero", "zero");
  KINORA_CHECK(scheduler.get<std::vector<int64_t>>("disable_corrector", {}).empty(), kConfig,
               "[diffusers] ", scheduler.path(), ": disable_corrector must be [], got ",
               scheduler.written("disable_corrector"));
  KINORA_CHECK(!scheduler.has("shift_terminal"), kConfig, "[diffusers] ", scheduler.path(),
               ": shift_terminal must be null, got ", scheduler.written("shift_terminal"));
  return {{"method", "unipc"},
          {"order", scheduler.get<int64_t>("solver_order", kDefaultSolverOrder)},
          {"whole_timesteps", true}};
}

}  // namespace

std::string objective_recipe(const std::filesystem::path& scheduler_config) {
  const DiffusersConfig scheduler(scheduler_config);
  const auto kind = scheduler.get<std::string>("_class_name", "");
  if (kind == kFlowEuler) {
    return flow_objective(scheduler).dump();
  }
  if (is_flow_of_unipc(scheduler)) {
    return unipc_flow_objective(scheduler).dump();
  }
  KINORA_CHECK(!kind.starts_with("FlowMatch") && !scheduler.get<bool>("use_flow_sigmas", false),
               kConfig, "[diffusers] ", scheduler.path(), " is of a flow (", kind,
               "), which Kinora reads of a ", kFlowEuler, " or a ", kUniPc,
               ". Hint: give a recipe with --config");
  KINORA_CHECK(!scheduler.has("trained_betas"), kConfig, "[diffusers] ", scheduler.path(),
               ": trained_betas must be null, got a list. Hint: beta_schedule");
  const DefaultChain chain = default_chain(kind);
  const auto timesteps = scheduler.get<int64_t>("num_train_timesteps", diffusion::kDdpmTimesteps);
  json objective = {
      {"kind", "iddpm"},
      {"timesteps", timesteps},
      {"prediction", recipe_name(kPredictions, scheduler, "prediction_type", "epsilon")},
      {"betas", recipe_name(kCurves, scheduler, "beta_schedule", chain.curve)},
      {"zero_terminal_snr", scheduler.get<bool>("rescale_betas_zero_snr", false)}};
  if (is_cogvideox(kind)) {
    objective["snr_shift"] = scheduler.get<double>("snr_shift_scale", kCogSnrShift);
  }
  if (objective["betas"] != "squared_cosine") {
    // Ours are of a chain of 1000 (diffusion::scaled_ends).
    const double scale =
        static_cast<double>(timesteps) / static_cast<double>(diffusion::kDdpmTimesteps);
    objective["beta_start"] = scale * scheduler.get<double>("beta_start", chain.beta_start);
    objective["beta_end"] = scale * scheduler.get<double>("beta_end", chain.beta_end);
  }
  return objective.dump();
}

std::string sampling_recipe(const std::filesystem::path& scheduler_config) {
  const DiffusersConfig scheduler(scheduler_config);
  if (scheduler.is("_class_name", kFlowEuler)) {
    return flow_sampling(scheduler).dump();
  }
  if (is_flow_of_unipc(scheduler)) {
    return unipc_flow_sampling(scheduler).dump();
  }
  const SchedulerClass& its = class_of(scheduler);
  check_known(scheduler, its);
  const bool limits = std::string_view(its.method) != "tcd" &&
                      !is_cogvideox(its.name);  // these have the options unread
  json sample = {{"method", its.method},
                 {"sigmas", sigmas_of(scheduler)},
                 {"clip_denoised", limits && scheduler.get<bool>("clip_sample", its.clips)}};
  if (its.spacing != nullptr) {
    sample["spacing"] = scheduler.get<std::string>("timestep_spacing", its.spacing);
    sample["steps_offset"] = scheduler.get<int64_t>("steps_offset", 0);
  } else {
    sample["spacing"] = "linspace";
  }
  if (its.order != nullptr) {
    sample["order"] = scheduler.get<int64_t>(its.order, kDefaultSolverOrder);
  }
  add_own(scheduler, sample);
  if (limits && scheduler.get<bool>("thresholding", false)) {
    sample["clip_denoised"] = false;
    sample["threshold"] = scheduler.get<double>("dynamic_thresholding_ratio", 0.995);
    sample["threshold_max"] = scheduler.get<double>("sample_max_value", 1.0);
  }
  return sample.dump();
}

std::string describe_scheduler(const diffusion::ObjectiveConfig& objective,
                               const std::string& version) {
  const auto [start, end] = diffusion::scaled_ends(objective);
  json config = {{"_class_name", "DDIMScheduler"},
                 {"_diffusers_version", version},
                 {"beta_end", end},
                 {"beta_schedule", diffusers_name(kCurves, objective.betas)},
                 {"beta_start", start},
                 {"clip_sample", false},
                 {"num_train_timesteps", objective.timesteps},
                 {"prediction_type", diffusers_name(kPredictions, objective.prediction)},
                 {"rescale_betas_zero_snr", objective.zero_terminal_snr},
                 {"set_alpha_to_one", true},
                 {"steps_offset", 0},
                 // Such a chain must be entered at its very end (Lin et al. 2024, section 3.3).
                 {"timestep_spacing", objective.zero_terminal_snr ? "trailing" : "leading"}};
  if (objective.snr_shift != 1.0) {
    config["_class_name"] = "CogVideoXDDIMScheduler";
    config["snr_shift_scale"] = objective.snr_shift;
  }
  return config.dump(2) + "\n";
}

}  // namespace kinora::pipelines
