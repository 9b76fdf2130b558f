#include "kinora/pipelines/diffusers_scheduler.h"

#include <nlohmann/json.hpp>
#include <string>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
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

/// The recipe's name of config's value.
template <typename T, size_t kCount>
const char* recipe_name(const Named<T> (&names)[kCount], const DiffusersConfig& config,
                        const char* key) {
  const auto got = config.get<std::string>(key, names[0].diffusers);
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

}  // namespace

std::string objective_recipe(const std::filesystem::path& scheduler_config) {
  const DiffusersConfig scheduler(scheduler_config);
  const auto kind = scheduler.get<std::string>("_class_name", "");
  KINORA_CHECK(!kind.starts_with("FlowMatch") && !scheduler.get<bool>("use_flow_sigmas", false),
               kConfig, "[diffusers] ", scheduler.path(), " is of a flow (", kind,
               "), but DiT and PixArt of diffusers learn discrete chains. Hint: give a recipe with "
               "--config");
  KINORA_CHECK(!scheduler.has("trained_betas"), kConfig, "[diffusers] ", scheduler.path(),
               ": trained_betas must be null, got a list. Hint: beta_schedule");
  const auto timesteps = scheduler.get<int64_t>("num_train_timesteps", diffusion::kDdpmTimesteps);
  json objective = {{"kind", "iddpm"},
                    {"timesteps", timesteps},
                    {"prediction", recipe_name(kPredictions, scheduler, "prediction_type")},
                    {"betas", recipe_name(kCurves, scheduler, "beta_schedule")},
                    {"zero_terminal_snr", scheduler.get<bool>("rescale_betas_zero_snr", false)}};
  if (objective["betas"] != "squared_cosine") {
    // Ours are of a chain of 1000 (diffusion::scaled_ends).
    const double scale =
        static_cast<double>(timesteps) / static_cast<double>(diffusion::kDdpmTimesteps);
    objective["beta_start"] =
        scale * scheduler.get<double>("beta_start", diffusion::kDdpmBetaStart);
    objective["beta_end"] = scale * scheduler.get<double>("beta_end", diffusion::kDdpmBetaEnd);
  }
  return objective.dump();
}

std::string describe_scheduler(const diffusion::ObjectiveConfig& objective,
                               const std::string& version) {
  const auto [start, end] = diffusion::scaled_ends(objective);
  const json config = {
      {"_class_name", "DDIMScheduler"},
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
  return config.dump(2) + "\n";
}

}  // namespace kinora::pipelines
