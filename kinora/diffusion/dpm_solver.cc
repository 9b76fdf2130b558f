#include "kinora/diffusion/dpm_solver.h"

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"
#include "kinora/diffusion/solver_steps.h"

namespace kinora::diffusion {
namespace {

using Algorithm = DpmSolver::Algorithm;

// In the logarithm of signal over noise.
constexpr double kSameLevel = 1e-9;

/// A step from x_s to x_t: x_t = x x_s + d0 D0 + d1 D1 + d2 D2 + noise z, where D1 and D2 are
/// differences of first and second order. midpoint is d1 of the second order's midpoint form.
struct Coefficients {
  double x;
  double d0;
  double midpoint;
  double d1;
  double d2;
  double noise;
};

bool integrates_data(Algorithm algorithm) {
  return algorithm == Algorithm::kDpmSolverPlus || algorithm == Algorithm::kSdeDpmSolverPlus;
}

Coefficients coefficients(Algorithm algorithm, const NoiseLevel& s, const NoiseLevel& t) {
  const double h = log_snr(t) - log_snr(s);
  if (std::fabs(h) < kSameLevel) {  // the formulas below divide by h
    return {.x = 1.0, .d0 = 0.0, .midpoint = 0.0, .d1 = 0.0, .d2 = 0.0, .noise = 0.0};
  }
  switch (algorithm) {
    case Algorithm::kDpmSolverPlus: {
      const double e = std::expm1(-h);
      return {.x = t.sigma / s.sigma,
              .d0 = -t.alpha * e,
              .midpoint = -0.5 * t.alpha * e,
              .d1 = t.alpha * (e / h + 1.0),
              .d2 = -t.alpha * ((e + h) / (h * h) - 0.5),
              .noise = 0.0};
    }
    case Algorithm::kDpmSolver: {
      const double e = std::expm1(h);
      return {.x = t.alpha / s.alpha,
              .d0 = -t.sigma * e,
              .midpoint = -0.5 * t.sigma * e,
              .d1 = -t.sigma * (e / h - 1.0),
              .d2 = -t.sigma * ((e - h) / (h * h) - 0.5),
              .noise = 0.0};
    }
    case Algorithm::kSdeDpmSolverPlus: {
      const double g = -std::expm1(-2.0 * h);
      return {.x = t.sigma / s.sigma * std::exp(-h),
              .d0 = t.alpha * g,
              .midpoint = 0.5 * t.alpha * g,
              .d1 = t.alpha * (1.0 - g / (2.0 * h)),
              .d2 = t.alpha * ((g - 2.0 * h) / (4.0 * h * h) - 0.5),
              .noise = t.sigma * std::sqrt(g)};
    }
    case Algorithm::kSdeDpmSolver: {
      const double e = std::expm1(h);
      return {.x = t.alpha / s.alpha,
              .d0 = -2.0 * t.sigma * e,
              .midpoint = -t.sigma * e,
              .d1 = -2.0 * t.sigma * (e / h - 1.0),
              .d2 = 0.0,
              .noise = t.sigma * std::sqrt(std::expm1(2.0 * h))};
    }
  }
  KINORA_UNREACHABLE("[sampler] unknown algorithm of DPM-Solver");
}

void check(const NoiseLevels& levels, const DpmSolver& solver, bool multistep) {
  KINORA_CHECK(solver.order >= 1 && solver.order <= 3, kConfig,
               "[sampler] DPM-Solver's order must lie in 1..3, got ", solver.order, ".");
  KINORA_CHECK(integrates_data(solver.algorithm) || levels.levels.back().sigma > 0.0, kConfig,
               "[sampler] a DPM-Solver that integrates noise cannot end without any. Hint: the "
               "smallest trained sigma as the last, or DPM-Solver++.");
  KINORA_CHECK(solver.algorithm != Algorithm::kSdeDpmSolver || (multistep && solver.order <= 2),
               kConfig,
               "[sampler] the SDE form of DPM-Solver is there for multistep of order 1 and 2, got ",
               solver.order, ".");
}

/// An evaluation of what the algorithm integrates.
SolverStep evaluated(const NoiseLevel& level, const DpmSolver& solver) {
  const Kept kept = integrates_data(solver.algorithm) ? Kept{.x0 = 1.0} : noise_of(level);
  return evaluation(level, kept, solver.limit);
}

/// The orders of a single-step solver's evaluations, one a level.
std::vector<int64_t> block_orders(int64_t num_steps, int64_t order, bool lower_order_final,
                                  bool ends_clean) {
  std::vector<int64_t> orders;
  const int64_t rest = num_steps % order;
  // Without lower orders at the end the steps must be whole blocks that end above sigma 0.
  const bool lower = (lower_order_final || rest != 0 || ends_clean) && order > 1;
  const int64_t blocks = num_steps / order - (lower && rest == 0 ? 1 : 0);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 1; i <= order; ++i) {
      orders.push_back(i);
    }
  }
  if (lower && order == 3) {
    const std::vector<int64_t> end = rest == 0   ? std::vector<int64_t>{1, 2, 1}
                                     : rest == 1 ? std::vector<int64_t>{1}
                                                 : std::vector<int64_t>{1, 2};
    orders.insert(orders.end(), end.begin(), end.end());
  } else if (lower && order == 2) {
    orders.insert(orders.end(), rest == 0 ? 2 : 1, 1);
  }
  if (ends_clean) {
    orders.back() = 1;
  }
  return orders;
}

}  // namespace

SolverPlan dpm_multistep(const NoiseLevels& noise_levels, const DpmSolver& solver) {
  check(noise_levels, solver, /*multistep=*/true);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  const auto num_steps = static_cast<int64_t>(levels.size()) - 1;
  const bool few = solver.lower_order_final && num_steps < kFewSteps;
  SolverPlan plan{.steps = {}, .initial_scale = noise_levels.initial_scale, .limit = solver.limit};
  for (int64_t k = 0; k < num_steps; ++k) {
    const auto i = static_cast<size_t>(k);
    int64_t order = std::min(solver.order, k + 1);
    if (k == num_steps - 1 && (solver.euler_at_final || few || levels.back().sigma == 0.0)) {
      order = 1;
    } else if (k == num_steps - 2 && few) {
      order = std::min<int64_t>(order, 2);
    }
    const Coefficients c = coefficients(solver.algorithm, levels[i], levels[i + 1]);
    Update next{.x = c.x, .history = {c.d0}, .noise = c.noise};
    const double h = log_snr(levels[i + 1]) - log_snr(levels[i]);
    if (order == 2) {
      // D1 = (m0 - m1) / r0, with r0 the last step's length over this one's.
      const double h0 = log_snr(levels[i]) - log_snr(levels[i - 1]);
      const double d1 = (solver.heun ? c.d1 : c.midpoint) * h / h0;
      next.history = {c.d0 + d1, -d1};
    } else if (order == 3) {
      const double h0 = log_snr(levels[i]) - log_snr(levels[i - 1]);
      const double h1 = log_snr(levels[i - 1]) - log_snr(levels[i - 2]);
      // D1 = a + h0 / (h0 + h1) (a - b), D2 = h / (h0 + h1) (a - b) of the slopes a, b before.
      const double of_a = c.d1 * (1.0 + h0 / (h0 + h1)) + c.d2 * h / (h0 + h1);
      const double of_b = -c.d1 * h0 / (h0 + h1) - c.d2 * h / (h0 + h1);
      const double a = of_a * h / h0;  // a = (m0 - m1) h / h0
      const double b = of_b * h / h1;  // b = (m1 - m2) h / h1
      next.history = {c.d0 + a, b - a, -b};
    }
    SolverStep step = evaluated(levels[i], solver);
    step.next = next;
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan dpm_singlestep(const NoiseLevels& noise_levels, const DpmSolver& solver) {
  check(noise_levels, solver, /*multistep=*/false);
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  const auto num_steps = static_cast<int64_t>(levels.size()) - 1;
  const std::vector<int64_t> orders =
      block_orders(num_steps, solver.order, solver.lower_order_final, levels.back().sigma == 0.0);
  SolverPlan plan{.steps = {}, .initial_scale = noise_levels.initial_scale, .limit = solver.limit};
  for (size_t i = 0; i < static_cast<size_t>(num_steps); ++i) {
    const int64_t order = orders[i];
    const NoiseLevel& from = levels[i + 1 - static_cast<size_t>(order)];  // where the block began
    const Coefficients c = coefficients(solver.algorithm, from, levels[i + 1]);
    Update next{.anchor = c.x, .history = {c.d0}, .noise = c.noise};
    const double h = log_snr(levels[i + 1]) - log_snr(from);
    const double h0 = log_snr(levels[i]) - log_snr(from);
    if (order == 2) {
      const double d1 = (solver.heun ? c.d1 : c.midpoint) * h / h0;
      next.history = {d1, c.d0 - d1};
    } else if (order == 3) {
      const double r0 = h0 / h;
      const double r1 = (log_snr(levels[i - 1]) - log_snr(from)) / h;
      // a = (m1 - m2) / r1 and b = (m0 - m2) / r0; D1 = (r0 a - r1 b) / (r0 - r1),
      // D2 = 2 (b - a) / (r0 - r1).
      const double of_a = solver.heun ? (c.d1 * r0 - 2.0 * c.d2) / (r0 - r1) / r1 : 0.0;
      const double of_b = (solver.heun ? (2.0 * c.d2 - c.d1 * r1) / (r0 - r1) : c.d1) / r0;
      next.history = {of_b, of_a, c.d0 - of_a - of_b};
    }
    SolverStep step = evaluated(levels[i], solver);
    step.keep_anchor = order == 1;
    step.next = next;
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace kinora::diffusion
