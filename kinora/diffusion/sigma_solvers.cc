#include "kinora/diffusion/sigma_solvers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kinora/core/error.h"
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
    KINORA_CHECK(levels[i].alpha == 1.0, kConfig,
                 "[sampler] euler_ancestral is for chains, not for flows");
    const double from = levels[i].sigma * levels[i].sigma;
    const double to = levels[i + 1].sigma * levels[i + 1].sigma;
    const double up = to * (from - to) / from;
    KINORA_CHECK(up >= 0.0, kConfig,
                 "[sampler] the levels of euler_ancestral must fall, got sigma ",
                 levels[i + 1].sigma, " after ", levels[i].sigma, ".");
    SolverStep step = evaluation(levels[i], {}, plan.limit);
    step.next = euler_update(levels[i], std::sqrt(to - up));
    step.next.noise = std::sqrt(up);
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

SolverPlan flow_renoised(const NoiseLevels& noise_levels) {
  SolverPlan plan = empty(noise_levels);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    SolverStep step = evaluation(levels[i], Kept{.x0 = 1.0}, plan.limit);
    step.next = {.x0 = levels[i + 1].alpha, .noise = levels[i + 1].sigma};
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace kinora::diffusion
