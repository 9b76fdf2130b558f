#include "kinora/diffusion/chain_solvers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "kinora/core/error.h"
#include "kinora/diffusion/dpm_solver.h"
#include "kinora/diffusion/solver_steps.h"

namespace kinora::diffusion {
namespace {

// Below the smallest variance of a posterior, where its logarithm is taken.
constexpr double kLeastVariance = 1e-20;
// (1 - eta) t must not turn a whole timestep into the one below.
constexpr double kWholeTimestep = 1e-6;
// Of the consistency function's boundary condition (Luo et al. 2023, section 3).
constexpr double kLcmSigmaData = 0.5;
constexpr int64_t kPseudoRungeKuttaSteps = 3;

int64_t length_of(const ChainWalk& walk) {
  return static_cast<int64_t>(walk.alphas_cumprod.size());
}

/// Of steps whose stride is fixed.
int64_t stride_of(const ChainWalk& walk) {
  const int64_t num_steps = std::ssize(walk.timesteps);
  const int64_t stride = length_of(walk) / num_steps;
  const int64_t reach = std::abs(walk.timesteps.front() - walk.timesteps.back());
  // A whole walk reaches as far in every spacing.
  KINORA_CHECK(reach >= stride * (num_steps - 1), kConfig, "[sampler] ", num_steps,
               " timesteps of a whole walk over ", length_of(walk), " must lie at least ", stride,
               " apart, got ", walk.timesteps.front(), " to ", walk.timesteps.back(),
               ". Hint: give all timesteps, and ChainWalk::first and count for a part of them");
  return stride;
}

/// Where the part to take ends.
int64_t end_of(const ChainWalk& walk) {
  return walk.count < 0 ? std::ssize(walk.timesteps) : walk.first + walk.count;
}

/// Timestep i of the whole walk; behind the last -1, the clean data.
int64_t visited(const ChainWalk& walk, int64_t i) {
  return i < std::ssize(walk.timesteps) ? walk.timesteps[static_cast<size_t>(i)] : -1;
}

/// alpha-bar; below timestep 0 `first`.
double alpha_bar(const ChainWalk& walk, int64_t t, double first) {
  KINORA_CHECK(t < length_of(walk), kConfig, "[sampler] timesteps must lie in 0..",
               length_of(walk) - 1, ", got ", t, ".");
  return t >= 0 ? walk.alphas_cumprod[static_cast<size_t>(t)] : first;
}

/// The level of this alpha-bar, with the timestep that the denoiser is given.
NoiseLevel level_at(const ChainWalk& walk, int64_t t, double alpha_bar) {
  const double alpha = std::sqrt(alpha_bar);
  const double sigma = std::sqrt(1.0 - alpha_bar);
  return {.t = static_cast<double>(t),
          .level = static_cast<double>(t) / static_cast<double>(length_of(walk) - 1),
          .alpha = alpha,
          .sigma = sigma,
          .to_clean = to_clean(walk.prediction, alpha, sigma)};
}

/// eps as the output has it: not limited.
Kept predicted_eps(Prediction prediction, const NoiseLevel& level) {
  switch (prediction) {
    case Prediction::kEps:
      return {.prediction = 1.0};
    case Prediction::kV:
      return {.x = level.sigma, .prediction = level.alpha};
    case Prediction::kData:
      return {.x = 1.0 / level.sigma, .prediction = -level.alpha / level.sigma};
    case Prediction::kFlow:
      break;
  }
  throw_error(ErrorKind::kConfig, "[sampler] a chain has no predictions of flows");
}

void check(const ChainWalk& walk) {
  KINORA_CHECK(!walk.timesteps.empty() && !walk.alphas_cumprod.empty(), kConfig,
               "[sampler] needs at least 1 step, got ", walk.timesteps.size(), ".");
  KINORA_CHECK(walk.prediction != Prediction::kFlow, kConfig,
               "[sampler] a chain has no predictions of flows");
  const int64_t num_steps = std::ssize(walk.timesteps);
  KINORA_CHECK(walk.first >= 0 && walk.first < end_of(walk) && end_of(walk) <= num_steps, kConfig,
               "[sampler] the part of a walk must lie in its ", num_steps, " timesteps, got first ",
               walk.first, " and count ", walk.count, ".");
}

}  // namespace

SolverPlan ddpm(const ChainWalk& walk, ChainVariance variance) {
  check(walk);
  SolverPlan plan{.steps = {}, .limit = walk.limit};
  for (int64_t i = walk.first; i < end_of(walk); ++i) {
    const int64_t t = visited(walk, i);
    const double now = alpha_bar(walk, t, 1.0);
    const double after = alpha_bar(walk, visited(walk, i + 1), 1.0);
    const double beta = 1.0 - now / after;
    const double posterior = std::max((1.0 - after) / (1.0 - now) * beta, kLeastVariance);
    SolverStep step = evaluation(level_at(walk, t, now), {}, walk.limit);
    step.next = {.x = std::sqrt(now / after) * (1.0 - after) / (1.0 - now),
                 .x0 = std::sqrt(after) * beta / (1.0 - now)};
    if (t > 0) {
      switch (variance) {
        case ChainVariance::kFixedSmall:
          step.next.noise = std::sqrt(posterior);
          break;
        case ChainVariance::kFixedLarge:
          step.next.noise = std::sqrt(beta);
          break;
        case ChainVariance::kLearned:
          step.predicted_noise = PredictedNoise{.range = false};
          break;
        case ChainVariance::kLearnedRange:
          step.predicted_noise =
              PredictedNoise{.min_log = std::log(posterior), .max_log = std::log(beta)};
          break;
      }
    }
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan ddim(const ChainWalk& walk, const Ddim& options) {
  check(walk);
  KINORA_CHECK(options.eta >= 0.0 && options.eta <= 1.0, kConfig,
               "[sampler] DDIM's eta must lie in 0..1, got ", options.eta, ".");
  const double end = options.end_clean ? 1.0 : walk.alphas_cumprod.front();
  const bool fixed = options.target == StepTarget::kFixedStride;
  const int64_t stride = fixed ? stride_of(walk) : 0;
  SolverPlan plan{.steps = {}, .limit = walk.limit};
  for (int64_t i = walk.first; i < end_of(walk); ++i) {
    const int64_t t = visited(walk, i);
    const double now = alpha_bar(walk, t, end);
    const double after = alpha_bar(walk, fixed ? t - stride : visited(walk, i + 1), end);
    const double variance =
        options.eta * options.eta * (1.0 - after) / (1.0 - now) * (1.0 - now / after);
    const double direction = std::sqrt(std::max(1.0 - after - variance, 0.0));
    const NoiseLevel level = level_at(walk, t, now);
    const Kept eps =
        options.eps_of_limited ? noise_of(level) : predicted_eps(walk.prediction, level);
    SolverStep step = evaluation(level, eps, walk.limit);
    step.next = {.x0 = std::sqrt(after),
                 .history = {direction},
                 .noise = std::sqrt(std::max(variance, 0.0))};
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan dpm_sde_of_chain(const ChainWalk& walk, bool end_clean) {
  check(walk);
  const double end = end_clean ? 1.0 : walk.alphas_cumprod.front();
  NoiseLevels levels;
  for (int64_t i = walk.first; i <= end_of(walk); ++i) {
    const int64_t t = visited(walk, i);
    levels.levels.push_back(level_at(walk, t, alpha_bar(walk, t, end)));
  }
  return dpm_multistep(levels, {.algorithm = DpmSolver::Algorithm::kSdeDpmSolverPlus,
                                .euler_at_final = end_of(walk) == std::ssize(walk.timesteps),
                                .limit = walk.limit});
}

SolverPlan ddim_inverse(const ChainWalk& walk, bool start_clean) {
  check(walk);
  const double start = start_clean ? 1.0 : walk.alphas_cumprod.front();
  const int64_t stride = stride_of(walk);
  SolverPlan plan{.steps = {}, .limit = walk.limit};
  for (int64_t i = walk.first; i < end_of(walk); ++i) {
    const int64_t t = visited(walk, i);
    const double now = alpha_bar(walk, std::min(t - stride, length_of(walk) - 1), start);
    const double after = alpha_bar(walk, t, start);
    const NoiseLevel level = level_at(walk, t, now);
    KINORA_CHECK(walk.prediction != Prediction::kData || level.sigma > 0.0, kConfig,
                 "[sampler] DDIM cannot leave clean data by a prediction of the data. Hint: start "
                 "at the first timestep's level.");
    SolverStep step = evaluation(level, predicted_eps(walk.prediction, level), walk.limit);
    step.next = {.x0 = std::sqrt(after), .history = {std::sqrt(1.0 - after)}};
    plan.steps.push_back(step);
  }
  return plan;
}

namespace {

/// A pseudo step of Liu et al. 2022, eq. 11, by a combination of outputs.
class PseudoSteps {
 public:
  PseudoSteps(const ChainWalk& walk, double end) : walk_(walk), end_(end) {
    check(walk);
    KINORA_CHECK(walk.prediction == Prediction::kEps || walk.prediction == Prediction::kV, kConfig,
                 "[sampler] plms is for predictions eps and v");
  }

  /// Evaluates at timestep `shown`, then goes from level `from` to `to` by a sum of outputs:
  /// (number of the evaluation, weight).
  void add(int64_t shown, int64_t from, int64_t to,
           const std::vector<std::pair<size_t, double>>& outputs, bool from_anchor,
           bool keep_anchor) {
    const double now = alpha_bar(walk_, from, end_);
    const double after = alpha_bar(walk_, to, end_);
    KINORA_CHECK(
        now > 0.0, kConfig,
        "[sampler] plms cannot begin where the signal is 0, as on a chain of zero terminal "
        "SNR. Hint: ddim, dpm++ or unipc");
    const double scale =
        (after - now) / (now * std::sqrt(1.0 - after) + std::sqrt(now * (1.0 - now) * after));
    const bool is_v = walk_.prediction == Prediction::kV;
    const double of_x = std::sqrt(after / now) - (is_v ? scale * std::sqrt(1.0 - now) : 0.0);
    const double of_output = -scale * (is_v ? std::sqrt(now) : 1.0);
    // What the step shows of x_0 is by the newest output alone.
    const double at_shown = alpha_bar(walk_, shown, end_);
    SolverStep step = evaluation(level_at(walk_, shown, at_shown), Kept{.prediction = 1.0}, {});
    (from_anchor ? step.next.anchor : step.next.x) = of_x;
    step.keep_anchor = keep_anchor;
    for (const auto& [number, weight] : outputs) {
      const size_t age = plan_.steps.size() - number;
      step.next.history.resize(std::max(step.next.history.size(), age + 1));
      step.next.history[age] = of_output * weight;
    }
    plan_.steps.push_back(step);
  }

  [[nodiscard]] size_t count() const { return plan_.steps.size(); }
  [[nodiscard]] const SolverPlan& plan() const { return plan_; }

 private:
  const ChainWalk& walk_;
  double end_;
  SolverPlan plan_;
};

}  // namespace

SolverPlan plms(const ChainWalk& walk, const Plms& options) {
  PseudoSteps steps(walk, options.end_clean ? 1.0 : walk.alphas_cumprod.front());
  const bool fixed = options.target == StepTarget::kFixedStride;
  const int64_t stride = fixed ? stride_of(walk) : 0;
  KINORA_CHECK(fixed || !options.runge_kutta, kConfig,
               "[sampler] PNDM's Runge-Kutta steps are of a fixed stride");
  std::vector<size_t> kept;    // evaluations that the multistep formula reads, oldest first
  int64_t first = walk.first;  // of the timesteps that remain
  const int64_t end = end_of(walk);
  if (options.runge_kutta) {
    KINORA_CHECK(end - first > kPseudoRungeKuttaSteps, kConfig,
                 "[sampler] PNDM with Runge-Kutta steps needs at least ",
                 kPseudoRungeKuttaSteps + 1, " timesteps, got ", end - first, ".");
    const int64_t half = stride / 2;
    for (; first < walk.first + kPseudoRungeKuttaSteps; ++first) {
      const int64_t t = visited(walk, first);
      const int64_t next = visited(walk, first + 1);
      const size_t e = steps.count();
      kept.push_back(e);
      const int64_t middle = next + half;
      steps.add(t, t, t - half, {{e, 1.0}}, false, true);
      steps.add(middle, t, middle, {{e + 1, 1.0}}, true, false);
      steps.add(middle, t, middle - half, {{e + 2, 1.0}}, true, false);
      steps.add(next, t, next,
                {{e, 1.0 / 6.0}, {e + 1, 1.0 / 3.0}, {e + 2, 1.0 / 3.0}, {e + 3, 1.0 / 6.0}}, true,
                false);
    }
  }
  for (int64_t i = first; i < end; ++i) {
    const int64_t t = visited(walk, i);
    kept.push_back(steps.count());
    const auto newest = [&kept](size_t age) { return kept[kept.size() - 1 - age]; };
    std::vector<std::pair<size_t, double>> outputs;
    switch (std::min<size_t>(kept.size(), 4)) {
      case 1:
        outputs = {{newest(0), 1.0}};
        break;
      case 2:
        outputs = {{newest(0), 1.5}, {newest(1), -0.5}};
        break;
      case 3:
        outputs = {{newest(0), 23.0 / 12.0}, {newest(1), -16.0 / 12.0}, {newest(2), 5.0 / 12.0}};
        break;
      default:
        outputs = {{newest(0), 55.0 / 24.0},
                   {newest(1), -59.0 / 24.0},
                   {newest(2), 37.0 / 24.0},
                   {newest(3), -9.0 / 24.0}};
    }
    const bool begins = i == walk.first;
    const int64_t next = visited(walk, i + 1);
    steps.add(t, t, fixed ? t - stride : next, outputs, false, begins);
    if (begins && next >= 0) {
      // The same step again, by the mean of its two ends' outputs.
      const size_t e = steps.count();
      steps.add(next, fixed ? next + stride : t, next, {{e, 0.5}, {e - 1, 0.5}}, true, false);
    }
  }
  return steps.plan();
}

std::vector<int64_t> lcm_timesteps(int64_t num_timesteps, int64_t num_steps,
                                   int64_t trained_steps) {
  KINORA_CHECK(trained_steps >= 1 && trained_steps <= num_timesteps, kConfig,
               "[sampler] LCM's trained steps must lie in 1..", num_timesteps, ", got ",
               trained_steps, ".");
  KINORA_CHECK(num_steps >= 1 && num_steps <= trained_steps, kConfig,
               "[sampler] LCM's steps must lie in 1..", trained_steps, ", got ", num_steps, ".");
  const int64_t stride = num_timesteps / trained_steps;
  std::vector<int64_t> timesteps;
  for (int64_t i = 0; i < num_steps; ++i) {
    const int64_t skipped = i * trained_steps / num_steps;
    timesteps.push_back((trained_steps - skipped) * stride - 1);
  }
  return timesteps;
}

SolverPlan lcm(const ChainWalk& walk, double timestep_scaling) {
  check(walk);
  SolverPlan plan{.steps = {}, .limit = walk.limit};
  for (int64_t i = walk.first; i < end_of(walk); ++i) {
    const int64_t t = visited(walk, i);
    const double scaled = static_cast<double>(t) * timestep_scaling;
    const double square = scaled * scaled + kLcmSigmaData * kLcmSigmaData;
    const double skip = kLcmSigmaData * kLcmSigmaData / square;
    const double out = scaled / std::sqrt(square);
    const double now = alpha_bar(walk, t, 1.0);
    SolverStep step = evaluation(level_at(walk, t, now), {}, walk.limit);
    if (i + 1 == std::ssize(walk.timesteps)) {
      step.next = {.x = skip, .x0 = out};
    } else {
      const double after = alpha_bar(walk, visited(walk, i + 1), 1.0);
      step.next = {.x = std::sqrt(after) * skip,
                   .x0 = std::sqrt(after) * out,
                   .noise = std::sqrt(1.0 - after)};
    }
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan tcd(const ChainWalk& walk, const Tcd& options) {
  check(walk);
  KINORA_CHECK(options.eta >= 0.0 && options.eta <= 1.0, kConfig,
               "[sampler] TCD's eta must lie in 0..1, got ", options.eta, ".");
  SolverPlan plan{.steps = {}, .limit = walk.limit};
  for (int64_t i = walk.first; i < end_of(walk); ++i) {
    const int64_t t = visited(walk, i);
    const bool last = i + 1 == std::ssize(walk.timesteps);
    const int64_t next = last ? (options.end_clean ? -1 : 0) : visited(walk, i + 1);
    const int64_t below =
        last ? next
             : static_cast<int64_t>((1.0 - options.eta) * static_cast<double>(next) +
                                    kWholeTimestep);
    const double after = alpha_bar(walk, next, 1.0);
    const double at_below = alpha_bar(walk, below, 1.0);
    const NoiseLevel level = level_at(walk, t, alpha_bar(walk, t, 1.0));
    SolverStep step = evaluation(level, predicted_eps(walk.prediction, level), walk.limit);
    step.next = {.x0 = std::sqrt(after),
                 .history = {std::sqrt(after / at_below * (1.0 - at_below))},
                 .noise = std::sqrt(1.0 - after / at_below)};
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace kinora::diffusion
