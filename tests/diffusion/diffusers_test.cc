// Whole loops of diffusers' schedulers (tools/make_sampler_fixtures.py, in float32) against our
// plans: hundreds of combinations of the schedulers' own options.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kinora/core/error.h"
#include "kinora/diffusion/betas.h"
#include "kinora/diffusion/chain_solvers.h"
#include "kinora/diffusion/deis.h"
#include "kinora/diffusion/dpm_solver.h"
#include "kinora/diffusion/sa_solver.h"
#include "kinora/diffusion/sigma_solvers.h"
#include "kinora/diffusion/unipc.h"
#include "tests/diffusion/recorded_loops.h"
#include "tests/diffusion/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::diffusion {
namespace diffusers_test {

using nlohmann::json;

// Timesteps are written with 7 digits.
constexpr double kTimestepTolerance = 1e-3;

const json& fixture() {
  static const json kFixture = [] {
    std::ifstream file(source_path("tests/diffusion/data/samplers.json"));
    EXPECT_TRUE(file.is_open());
    return json::parse(file);
  }();
  return kFixture;
}

/// A recorded loop, and the options that it ran with.
class Case {
 public:
  explicit Case(const json& record) : record_(record) {}

  [[nodiscard]] const json& option(const std::string& name) const {
    const json& options = record_.at("options");
    return options.contains(name) ? options.at(name)
                                  : fixture().at("defaults").at(scheduler()).at(name);
  }
  [[nodiscard]] bool has(const std::string& name) const {
    return fixture().at("defaults").at(scheduler()).contains(name);
  }
  [[nodiscard]] bool flag(const std::string& name) const {
    return has(name) && option(name).get<bool>();
  }
  [[nodiscard]] double number(const std::string& name) const { return option(name).get<double>(); }
  [[nodiscard]] int64_t integer(const std::string& name) const {
    return option(name).get<int64_t>();
  }
  [[nodiscard]] std::string word(const std::string& name) const {
    const json& value = option(name);
    return value.is_null() ? "" : value.get<std::string>();
  }
  [[nodiscard]] const json& call() const { return record_.at("call"); }
  [[nodiscard]] std::string scheduler() const { return record_.at("class").get<std::string>(); }
  [[nodiscard]] int64_t steps() const { return record_.at("steps").get<int64_t>(); }
  [[nodiscard]] std::vector<double> times() const {
    return record_.at("t").get<std::vector<double>>();
  }
  [[nodiscard]] at::Tensor x() const {
    return at::tensor(record_.at("x").get<std::vector<double>>(), at::kDouble).view({2, 3, 2, 2});
  }
  [[nodiscard]] std::string text() const {
    return scheduler() + ", " + std::to_string(steps()) + " steps, " +
           record_.at("options").dump() + call().dump();
  }
  [[nodiscard]] bool is_flow() const {
    return flag("use_flow_sigmas") || scheduler().starts_with("FlowMatch");
  }

 private:
  const json& record_;
};

/// alpha-bar as torch.cumprod has it: summed in double, each rounded to float.
std::vector<float> products(const std::vector<float>& betas) {
  std::vector<float> result;
  double product = 1.0;
  for (const float beta : betas) {
    product *= static_cast<double>(1.0F - beta);
    result.push_back(static_cast<float>(product));
  }
  return result;
}

/// zero_terminal_snr() in float, step by step as diffusers computes it.
std::vector<float> rescaled_in_float(const std::vector<float>& betas) {
  std::vector<float> roots = products(betas);
  for (float& value : roots) {
    value = std::sqrt(value);
  }
  const float first = roots.front();
  const float last = roots.back();
  std::vector<float> result;
  float previous = 1.0F;
  for (const float root : roots) {
    const float moved = (root - last) * (first / (first - last));
    const float alpha_bar = moved * moved;
    result.push_back(1.0F - alpha_bar / previous);
    previous = alpha_bar;
  }
  return result;
}

/// alpha-bar with diffusers' rounding: 1 - alpha-bar of the first timesteps, 4e-5 or so, differs by
/// 1e-3 of itself between tables in float and in double, and so do the cleanest sigmas.
std::vector<double> chain(const Case& of) {
  const std::map<std::string, BetaCurve> curves{{"linear", BetaCurve::kLinear},
                                                {"scaled_linear", BetaCurve::kScaledLinear},
                                                {"squaredcos_cap_v2", BetaCurve::kSquaredCosine}};
  const std::vector<double> exact =
      make_betas(curves.at(of.word("beta_schedule")), of.integer("num_train_timesteps"),
                 of.number("beta_start"), of.number("beta_end"));
  const bool rescale = of.flag("rescale_betas_zero_snr");
  const std::vector<float> betas(exact.begin(), exact.end());
  const std::vector<float> rounded = products(rescale ? rescaled_in_float(betas) : betas);
  const std::vector<double> unrounded = alphas_cumprod(rescale ? zero_terminal_snr(exact) : exact);
  for (size_t t = 0; t < rounded.size(); ++t) {
    EXPECT_NEAR(rounded[t], unrounded[t], 2e-6) << t;
  }
  return {rounded.begin(), rounded.end()};
}

Prediction prediction(const Case& of) {
  const std::map<std::string, Prediction> predictions{{"epsilon", Prediction::kEps},
                                                      {"sample", Prediction::kData},
                                                      {"v_prediction", Prediction::kV},
                                                      {"flow_prediction", Prediction::kFlow}};
  return predictions.at(of.word("prediction_type"));
}

Limit limit(const Case& of) {
  if (of.flag("thresholding")) {
    return {.kind = Limit::Kind::kThreshold,
            .max = of.number("sample_max_value"),
            .ratio = of.number("dynamic_thresholding_ratio")};
  }
  if (of.flag("clip_sample")) {
    return {.kind = Limit::Kind::kClip, .max = of.number("clip_sample_range")};
  }
  return {};
}

Spacing spacing(const Case& of) {
  return of.has("timestep_spacing") ? parse_spacing(of.word("timestep_spacing")).value()
                                    : Spacing::kLinspace;
}

SigmaSpacing sigma_spacing(const Case& of) {
  return of.flag("use_karras_sigmas")        ? SigmaSpacing::kKarras
         : of.flag("use_exponential_sigmas") ? SigmaSpacing::kExponential
         : of.flag("use_beta_sigmas")        ? SigmaSpacing::kBeta
         : of.flag("use_lu_lambdas")         ? SigmaSpacing::kLu
                                             : SigmaSpacing::kTimesteps;
}

FinalSigma final_sigma(const Case& of) {
  return (of.has("final_sigmas_type") && of.word("final_sigmas_type") == "sigma_min") ||
                 of.scheduler() == "DEISMultistepScheduler" || of.scheduler() == "SASolverScheduler"
             ? FinalSigma::kMin
             : FinalSigma::kZero;
}

std::optional<double> optional_number(const Case& of, const std::string& name) {
  return of.has(name) && !of.option(name).is_null() ? std::optional(of.number(name)) : std::nullopt;
}

Sigmas sigmas_of_chain(const Case& of, TimestepConvention convention,
                       MiddleSigma middle = MiddleSigma::kNone) {
  ChainSigmas options{.num_steps = of.steps(),
                      .convention = convention,
                      .spacing = spacing(of),
                      .steps_offset = of.has("steps_offset") ? of.integer("steps_offset") : 0,
                      .sigmas = sigma_spacing(of),
                      .final_sigma = final_sigma(of),
                      .whole_karras = of.scheduler().starts_with("KDPM2"),
                      .middle = middle,
                      .sigma_min = optional_number(of, "sigma_min"),
                      .sigma_max = optional_number(of, "sigma_max")};
  if (const auto clipped = optional_number(of, "lambda_min_clipped")) {
    options.min_log_snr = *clipped;
  }
  options.round_karras = of.scheduler() != "DPMSolverMultistepScheduler" ||
                         of.word("beta_schedule") != "squaredcos_cap_v2";
  return chain_sigmas(chain(of), options);
}

/// The shift: static, or of diffusers' mu.
double shift(const Case& of, const std::string& name) {
  if (!of.flag("use_dynamic_shifting")) {
    return of.number(name);
  }
  const double mu = of.call().at("mu").get<double>();
  return of.word("time_shift_type") == "exponential" ? std::exp(mu) : mu;
}

NoiseLevels levels_of_chain_or_flow(const Case& of, FlowSigmas::Ends ends) {
  if (of.is_flow()) {
    Sigmas sigmas = flow_sigmas({.num_steps = of.steps(),
                                 .ends = ends,
                                 .num_timesteps = of.integer("num_train_timesteps"),
                                 .shift = shift(of, "flow_shift"),
                                 .terminal = optional_number(of, "shift_terminal")});
    if (final_sigma(of) == FinalSigma::kMin) {
      sigmas.sigmas.back() = sigmas.timesteps.back();
    }
    return along_flow(sigmas, prediction(of));
  }
  return variance_preserving(sigmas_of_chain(of, TimestepConvention::kDpmSolver), prediction(of),
                             of.integer("num_train_timesteps"));
}

NoiseLevels exploding_levels(const Case& of, MiddleSigma middle = MiddleSigma::kNone) {
  return variance_exploding(sigmas_of_chain(of, TimestepConvention::kSigmas, middle),
                            prediction(of), of.integer("num_train_timesteps"),
                            of.word("timestep_spacing") != "leading");
}

NoiseLevels edm_levels(const Case& of) {
  return edm_preconditioned(edm_sigmas({.num_steps = of.steps(),
                                        .sigma_min = of.number("sigma_min"),
                                        .sigma_max = of.number("sigma_max"),
                                        .rho = of.number("rho"),
                                        .exponential = of.word("sigma_schedule") == "exponential",
                                        .final_sigma = final_sigma(of)}),
                            prediction(of), of.number("sigma_data"), of.number("sigma_max"));
}

NoiseLevels flow_match_levels(const Case& of) {
  return along_flow(flow_sigmas({.num_steps = of.steps(),
                                 .ends = FlowSigmas::Ends::kTrainedLevels,
                                 .num_timesteps = of.integer("num_train_timesteps"),
                                 .shift = shift(of, "shift"),
                                 .dynamic = of.flag("use_dynamic_shifting"),
                                 .terminal = optional_number(of, "shift_terminal"),
                                 .sigmas = sigma_spacing(of)}),
                    Prediction::kFlow);
}

DpmSolver dpm(const Case& of) {
  using Algorithm = DpmSolver::Algorithm;
  const std::map<std::string, Algorithm> algorithms{
      {"dpmsolver", Algorithm::kDpmSolver},
      {"dpmsolver++", Algorithm::kDpmSolverPlus},
      {"sde-dpmsolver", Algorithm::kSdeDpmSolver},
      {"sde-dpmsolver++", Algorithm::kSdeDpmSolverPlus}};
  return {.algorithm = algorithms.at(of.word("algorithm_type")),
          .order = of.integer("solver_order"),
          .heun = of.word("solver_type") == "heun",
          .lower_order_final = of.flag("lower_order_final"),
          .euler_at_final = of.flag("euler_at_final"),
          .limit = limit(of)};
}

ChainWalk walk(const Case& of) {
  const std::vector<double> alpha_bars = chain(of);
  return {.alphas_cumprod = alpha_bars,
          .timesteps = chain_timesteps(static_cast<int64_t>(alpha_bars.size()), spacing(of),
                                       of.steps(), of.integer("steps_offset")),
          .prediction = prediction(of),
          .limit = limit(of)};
}

using Make = SolverPlan (*)(const Case&);

SolverPlan make_ddpm(const Case& of) {
  const std::map<std::string, ChainVariance> variances{
      {"fixed_small", ChainVariance::kFixedSmall},
      {"fixed_small_log", ChainVariance::kFixedSmall},
      {"fixed_large", ChainVariance::kFixedLarge},
      {"learned", ChainVariance::kLearned},
      {"learned_range", ChainVariance::kLearnedRange}};
  return ddpm(walk(of), variances.at(of.word("variance_type")));
}
SolverPlan make_ddim(const Case& of) {
  return ddim(walk(of), {.eta = of.call().at("eta").get<double>(),
                         .eps_of_limited = of.call().at("use_clipped_model_output").get<bool>(),
                         .end_clean = of.flag("set_alpha_to_one")});
}
SolverPlan make_ddim_inverse(const Case& of) {
  ChainWalk ascending = walk(of);
  std::reverse(ascending.timesteps.begin(), ascending.timesteps.end());
  return ddim_inverse(ascending, of.flag("set_alpha_to_one"));
}
SolverPlan make_plms(const Case& of) {
  return plms(walk(of), {.runge_kutta = !of.flag("skip_prk_steps"),
                         .end_clean = of.flag("set_alpha_to_one")});
}
SolverPlan make_dpm_multistep(const Case& of) {
  return dpm_multistep(levels_of_chain_or_flow(of, FlowSigmas::Ends::kBelowOne), dpm(of));
}
SolverPlan make_dpm_singlestep(const Case& of) {
  return dpm_singlestep(levels_of_chain_or_flow(of, FlowSigmas::Ends::kBelowOne), dpm(of));
}
SolverPlan make_unipc(const Case& of) {
  return unipc(levels_of_chain_or_flow(of, FlowSigmas::Ends::kAboveZero),
               {.order = of.integer("solver_order"),
                .bh2 = of.word("solver_type") == "bh2",
                .predict_x0 = of.flag("predict_x0"),
                .lower_order_final = of.flag("lower_order_final"),
                .without_corrector = of.option("disable_corrector").get<std::vector<int64_t>>(),
                .limit = limit(of)});
}
SolverPlan make_euler(const Case& of) {
  return euler(exploding_levels(of));
}
SolverPlan make_euler_ancestral(const Case& of) {
  return euler_ancestral(exploding_levels(of));
}
SolverPlan make_heun(const Case& of) {
  return heun(exploding_levels(of), limit(of));
}
SolverPlan make_lms(const Case& of) {
  return linear_multistep(exploding_levels(of), of.call().at("order").get<int64_t>());
}
SolverPlan make_edm_euler(const Case& of) {
  return euler(edm_levels(of));
}
SolverPlan make_edm_dpm(const Case& of) {
  return dpm_multistep(edm_levels(of), dpm(of));
}
SolverPlan make_flow_euler(const Case& of) {
  const NoiseLevels levels = flow_match_levels(of);
  return of.flag("stochastic_sampling") ? renoised(levels) : euler(levels);
}
SolverPlan make_flow_heun(const Case& of) {
  return heun(flow_match_levels(of));
}
SolverPlan make_lcm(const Case& of) {
  ChainWalk steps = walk(of);
  steps.timesteps = lcm_timesteps(static_cast<int64_t>(steps.alphas_cumprod.size()), of.steps(),
                                  of.integer("original_inference_steps"));
  return lcm(steps, of.number("timestep_scaling"));
}

SolverPlan make_deis(const Case& of) {
  return deis(levels_of_chain_or_flow(of, FlowSigmas::Ends::kBelowOne),
              {.order = of.integer("solver_order"),
               .lower_order_final = of.flag("lower_order_final"),
               .limit = limit(of)});
}
/// Of its own chain, of which the first step is left out.
SolverPlan make_ipndm(const Case& of) {
  NoiseLevels levels;
  for (int64_t i = 1; i <= of.steps(); ++i) {
    const double time = 1.0 - static_cast<double>(i) / static_cast<double>(of.steps());
    const double sigma = std::pow(std::sin(time * std::acos(-1.0) / 2.0), 2.0);
    const double alpha = std::sqrt(1.0 - sigma * sigma);
    levels.levels.push_back({.t = std::atan2(sigma, alpha) * 2.0 / std::acos(-1.0),
                             .alpha = alpha,
                             .sigma = sigma,
                             .to_clean = to_clean(Prediction::kV, alpha, sigma)});
  }
  return ipndm(levels);
}
SolverPlan make_dpm2(const Case& of) {
  return dpm2(exploding_levels(of, MiddleSigma::kOfNext));
}
SolverPlan make_dpm2_ancestral(const Case& of) {
  return dpm2_ancestral(exploding_levels(of, MiddleSigma::kOfLowest));
}
SolverPlan make_dpm_sde(const Case& of) {
  return dpm_sde(exploding_levels(of, MiddleSigma::kOfNext));
}
SolverPlan make_sa_solver(const Case& of) {
  const double unit = of.is_flow() ? of.number("num_train_timesteps") : 1.0;
  return sa_solver(levels_of_chain_or_flow(of, FlowSigmas::Ends::kBelowOne),
                   {.predictor_order = of.integer("predictor_order"),
                    .corrector_order = of.integer("corrector_order"),
                    .tau_from = 200.0 / unit,
                    .tau_to = 800.0 / unit,
                    .predict_x0 = of.word("algorithm_type") == "data_prediction",
                    .lower_order_final = of.flag("lower_order_final"),
                    .limit = limit(of)});
}
SolverPlan make_tcd(const Case& of) {
  ChainWalk steps = walk(of);
  steps.limit = {};  // TCDScheduler has the options, and never reads them
  steps.timesteps = lcm_timesteps(static_cast<int64_t>(steps.alphas_cumprod.size()), of.steps(),
                                  of.integer("original_inference_steps"));
  return tcd(steps, {.eta = of.call().at("eta").get<double>(), .end_clean = false});
}
SolverPlan make_consistency(const Case& of) {
  const Sigmas sigmas = consistency_sigmas({.num_steps = of.steps(),
                                            .num_timesteps = of.integer("num_train_timesteps"),
                                            .sigma_min = of.number("sigma_min"),
                                            .sigma_max = of.number("sigma_max"),
                                            .rho = of.number("rho")});
  return renoised(
      consistency_preconditioned(sigmas, of.number("sigma_data")),
      {.noise_scale = of.number("s_noise"),
       .sigma_min = of.number("sigma_min"),
       .limit = {.kind = of.flag("clip_denoised") ? Limit::Kind::kClip : Limit::Kind::kNone}});
}

/// x after all evaluations, shown the recorded times.
at::Tensor run(const SolverPlan& plan, const Case& of) {
  const bool learned = of.has("variance_type") && of.word("variance_type").starts_with("learned");
  const std::vector<double> times = of.times();
  SolverState state(plan);
  at::Tensor x = start() * plan.initial_scale;
  for (int64_t k = 0; k < static_cast<int64_t>(plan.steps.size()); ++k) {
    const SolverStep& step = plan.steps[static_cast<size_t>(k)];
    const at::Tensor shown = step.input_scale * x;
    x = state.step(k, x, denoised(shown, times[static_cast<size_t>(k)], learned), noise(k)).x;
  }
  return x;
}

/// Whether diffusers cuts these timesteps to whole ones, which rounding can make one less.
bool is_cut(const Case& of) {
  return of.has("use_beta_sigmas") && (of.has("solver_order") || of.has("predictor_order")) &&
         sigma_spacing(of) != SigmaSpacing::kTimesteps;
}

struct Scheduler {
  const char* name;
  Make make;
};

class DiffusersTest : public testing::TestWithParam<Scheduler> {};

TEST_P(DiffusersTest, SameTimestepsAndResults) {
  int64_t num_cases = 0;
  double largest = 0.0;
  for (const json& record : fixture().at("cases")) {
    const Case of(record);
    if (of.scheduler() != GetParam().name) {
      continue;
    }
    ++num_cases;
    SCOPED_TRACE(of.text());
    const SolverPlan plan = GetParam().make(of);
    const std::vector<double> times = of.times();
    ASSERT_EQ(plan.steps.size(), times.size());
    int64_t num_shifted = 0;
    for (size_t k = 0; k < times.size(); ++k) {
      const double t = plan.steps[k].t * (of.is_flow() ? 1000.0 : 1.0);
      const double difference = std::fabs(t - times[k]);
      if (is_cut(of) && difference > kTimestepTolerance) {
        EXPECT_NEAR(difference, 1.0, kTimestepTolerance) << "evaluation " << k;
        ++num_shifted;
      } else {
        EXPECT_LE(difference, kTimestepTolerance) << "evaluation " << k;
      }
    }
    EXPECT_LE(num_shifted, 3);  // where the table of sigmas ends or is dense
    const at::Tensor expected = of.x();
    const double scale = std::max(1.0, expected.abs().max().item<double>());
    const double difference = max_difference(run(plan, of), expected) / scale;
    EXPECT_LE(difference, tolerance::kWholeModel);
    largest = std::max(largest, difference);
  }
  EXPECT_GE(num_cases, 3);
  std::printf("%d cases, largest difference %.1e\n", static_cast<int>(num_cases), largest);
}

INSTANTIATE_TEST_SUITE_P(
    Schedulers, DiffusersTest,
    testing::Values(
        Scheduler{"DDPMScheduler", make_ddpm}, Scheduler{"DDIMScheduler", make_ddim},
        Scheduler{"DDIMInverseScheduler", make_ddim_inverse}, Scheduler{"PNDMScheduler", make_plms},
        Scheduler{"DPMSolverMultistepScheduler", make_dpm_multistep},
        Scheduler{"DPMSolverSinglestepScheduler", make_dpm_singlestep},
        Scheduler{"UniPCMultistepScheduler", make_unipc},
        Scheduler{"EulerDiscreteScheduler", make_euler},
        Scheduler{"EulerAncestralDiscreteScheduler", make_euler_ancestral},
        Scheduler{"HeunDiscreteScheduler", make_heun}, Scheduler{"LMSDiscreteScheduler", make_lms},
        Scheduler{"EDMEulerScheduler", make_edm_euler},
        Scheduler{"EDMDPMSolverMultistepScheduler", make_edm_dpm},
        Scheduler{"FlowMatchEulerDiscreteScheduler", make_flow_euler},
        Scheduler{"FlowMatchHeunDiscreteScheduler", make_flow_heun},
        Scheduler{"LCMScheduler", make_lcm}, Scheduler{"DEISMultistepScheduler", make_deis},
        Scheduler{"IPNDMScheduler", make_ipndm}, Scheduler{"KDPM2DiscreteScheduler", make_dpm2},
        Scheduler{"KDPM2AncestralDiscreteScheduler", make_dpm2_ancestral},
        Scheduler{"DPMSolverSDEScheduler", make_dpm_sde},
        Scheduler{"SASolverScheduler", make_sa_solver}, Scheduler{"TCDScheduler", make_tcd},
        Scheduler{"CMStochasticIterativeScheduler", make_consistency}),
    [](const testing::TestParamInfo<Scheduler>& info) { return std::string(info.param.name); });

}  // namespace diffusers_test
}  // namespace kinora::diffusion
