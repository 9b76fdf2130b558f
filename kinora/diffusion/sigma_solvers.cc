#include "kinora/diffusion/sigma_solvers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kinora/core/error.h"
#include "kinora/diffusion/brownian.h"
#include "kinora/diffusion/solver_steps.h"

namespace kinora::diffusion {
namespace {

constexpr int64_t kMaxOrder = 4;

void check(const NoiseLevels& levels) {
  for (const NoiseLevel& level : levels.levels) {
    const bool fits = level.alpha == 1.0 || level.alpha == 1.0 - level.sigma;
    KINORA_CHECK(
        fits, kConfig,
        "[sampler] solvers in sigma need x = x_0 + sigma noise or a flow, got a signal of ",
        level.alpha, " at sigma ", level.sigma, ".");
  }
}

void check_chain(const NoiseLevel& level, const char* method) {
  KINORA_CHECK(level.alpha == 1.0, kConfig, "[sampler] ", method, " is for chains, not for flows");
}

/// (x - x_0) / sigma, in both cases.
Kept slope(const NoiseLevel& level) {
  return {.x = 1.0 / level.sigma, .x0 = -1.0 / level.sigma};
}

/// Euler's step from level `from` to `sigma`, as a share of x and one of x_0: of the last step,
/// which leads to 0, nothing but x_0 remains. x + (sigma - from) slope is the same, but rounds off
/// what is left of two large numbers.
Update euler_update(const NoiseLevel& from, double sigma) {
  return {.x = sigma / from.sigma, .x0 = 1.0 - sigma / from.sigma};
}

SolverPlan empty(const NoiseLevels& levels, const Limit& limit = {}) {
  check(levels);
  return {.steps = {}, .initial_scale = levels.initial_scale, .limit = limit};
}

/// The integral of the Lagrange polynomial of node j over [from, to], whose degree is at most 3:
/// Gauss and Legendre's rule of two points is exact.
double lagrange_integral(const std::vector<double>& nodes, size_t j, double from, double to) {
  const double half = 0.5 * (to - from);
  const double middle = 0.5 * (to + from);
  double integral = 0.0;
  for (const double place : {-1.0 / std::sqrt(3.0), 1.0 / std::sqrt(3.0)}) {
    const double sigma = middle + half * place;
    double product = 1.0;
    for (size_t k = 0; k < nodes.size(); ++k) {
      product *= k == j ? 1.0 : (sigma - nodes[k]) / (nodes[j] - nodes[k]);
    }
    integral += half * product;
  }
  return integral;
}

}  // namespace

SolverPlan euler(const NoiseLevels& noise_levels) {
  SolverPlan plan = empty(noise_levels);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    SolverStep step = evaluation(levels[i], {}, plan.limit);
    step.next = euler_update(levels[i], levels[i + 1].sigma);
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan euler_ancestral(const NoiseLevels& noise_levels) {
  SolverPlan plan = empty(noise_levels);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    check_chain(levels[i], "euler_ancestral");
    const AncestralStep part = ancestral_step(levels[i].sigma, levels[i + 1].sigma);
    SolverStep step = evaluation(levels[i], {}, plan.limit);
    step.next = euler_update(levels[i], part.down);
    step.next.noise = part.up;
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan heun(const NoiseLevels& noise_levels, const Limit& limit) {
  SolverPlan plan = empty(noise_levels, limit);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    const double step_length = levels[i + 1].sigma - levels[i].sigma;
    SolverStep first = evaluation(levels[i], slope(levels[i]), limit);
    first.keep_anchor = true;
    first.next = euler_update(levels[i], levels[i + 1].sigma);
    plan.steps.push_back(first);
    if (i + 2 == levels.size()) {
      break;  // the last step has no slope at its end
    }
    SolverStep second = evaluation(levels[i + 1], slope(levels[i + 1]), limit);
    second.next = {.anchor = 1.0, .history = {0.5 * step_length, 0.5 * step_length}};
    plan.steps.push_back(second);
  }
  return plan;
}

SolverPlan linear_multistep(const NoiseLevels& noise_levels, int64_t order) {
  KINORA_CHECK(order >= 1 && order <= kMaxOrder, kConfig,
               "[sampler] the order of linear multistep must lie in 1..", kMaxOrder, ", got ",
               order, ".");
  SolverPlan plan = empty(noise_levels);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    std::vector<double> nodes;
    for (size_t j = 0; j <= i && j < static_cast<size_t>(order); ++j) {
      nodes.push_back(levels[i - j].sigma);
    }
    SolverStep step = evaluation(levels[i], slope(levels[i]), plan.limit);
    step.next.x = 1.0;
    for (size_t j = 0; j < nodes.size(); ++j) {
      step.next.history.push_back(
          lagrange_integral(nodes, j, levels[i].sigma, levels[i + 1].sigma));
    }
    plan.steps.push_back(step);
  }
  return plan;
}

namespace {

/// The three levels of each step, whose middle is missing in the last.
void check_middles(const NoiseLevels& levels) {
  KINORA_CHECK(levels.levels.size() % 2 == 0, kInternal,
               "[sampler] this method needs levels with middles, got ", levels.levels.size(),
               " levels.");
}

/// A step by the slope at its middle, to `end` of this step's end.
template <typename End>
SolverPlan by_middles(const NoiseLevels& noise_levels, const End& end) {
  check_middles(noise_levels);
  SolverPlan plan = empty(noise_levels);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 2 < levels.size(); i += 2) {
    const AncestralStep step = end(levels[i], levels[i + 2]);
    SolverStep first = evaluation(levels[i], {}, plan.limit);
    first.keep_anchor = true;
    first.next = euler_update(levels[i], levels[i + 1].sigma);
    plan.steps.push_back(first);
    SolverStep second = evaluation(levels[i + 1], slope(levels[i + 1]), plan.limit);
    second.next = {.anchor = 1.0, .history = {step.down - levels[i].sigma}, .noise = step.up};
    plan.steps.push_back(second);
  }
  const NoiseLevel& last = levels[levels.size() - 2];
  SolverStep step = evaluation(last, {}, plan.limit);
  step.next = euler_update(last, levels.back().sigma);
  plan.steps.push_back(step);
  return plan;
}

}  // namespace

SolverPlan dpm2(const NoiseLevels& levels) {
  return by_middles(levels, [](const NoiseLevel& /*from*/, const NoiseLevel& to) {
    return AncestralStep{.down = to.sigma, .up = 0.0};
  });
}

SolverPlan dpm2_ancestral(const NoiseLevels& levels) {
  return by_middles(levels, [](const NoiseLevel& from, const NoiseLevel& to) {
    check_chain(from, "dpm2_ancestral");
    return ancestral_step(from.sigma, to.sigma);
  });
}

SolverPlan dpm_sde(const NoiseLevels& noise_levels) {
  check_middles(noise_levels);
  SolverPlan plan = empty(noise_levels);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  // Paths of two numbers of steps are the same one where they begin at the same power of two.
  const double end = std::exp2(std::ceil(std::log2(levels.front().sigma)));
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    const bool first = i % 2 == 0;
    const NoiseLevel& from = levels[first ? i : i - 1];
    check_chain(from, "dpm_sde");
    const double to = levels[i + 1].sigma;
    const AncestralStep part = ancestral_step(from.sigma, to);
    SolverStep step = evaluation(levels[i], {}, plan.limit);
    step.keep_anchor = first;
    const double share = part.down / from.sigma;
    step.next = {.x0 = 1.0 - share, .noise = part.up};
    (first ? step.next.x : step.next.anchor) = share;
    if (part.up > 0.0) {
      step.noise_shares = brownian_increment(from.sigma, to, end);
    }
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan renoised(const NoiseLevels& noise_levels, const Renoised& options) {
  SolverPlan plan = empty(noise_levels, options.limit);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    const NoiseLevel& to = levels[i + 1];
    const double square = to.sigma * to.sigma - options.sigma_min * options.sigma_min;
    SolverStep step = evaluation(levels[i], {}, plan.limit);
    step.next = {.x0 = to.alpha, .noise = options.noise_scale * std::sqrt(std::max(square, 0.0))};
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace kinora::diffusion
