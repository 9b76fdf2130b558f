#include "kinora/diffusion/unipc.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/diffusion/solver_steps.h"

namespace kinora::diffusion {
namespace {

// In the logarithm of signal over noise.
constexpr double kSameLevel = 1e-9;

using Matrix = std::vector<std::vector<double>>;

/// x of a x = b, by elimination with row exchanges; of the size of the order.
std::vector<double> solved(Matrix a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row) {
      if (std::fabs(a[row][column]) > std::fabs(a[pivot][column])) {
        pivot = row;
      }
    }
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (size_t row = column + 1; row < n; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < n; ++k) {
        a[row][k] -= factor * a[column][k];
      }
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = n; row-- > 0;) {
    for (size_t k = row + 1; k < n; ++k) {
      b[row] -= a[row][k] * b[k];
    }
    b[row] /= a[row][row];
  }
  return b;
}

/// The step from level s to t with `order - 1` levels before s: x_t = x x_s + d0 m0 + scale *
/// (weighted differences of m).
struct Bh {
  double x;
  double d0;
  double scale;
  std::vector<double> ratios;     ///< r of the levels before s, nearest first
  std::vector<double> predictor;  ///< a weight a ratio
  std::vector<double> corrector;  ///< likewise, and that of the new evaluation
};

Bh coefficients(const UniPc& solver, const std::vector<NoiseLevel>& levels, size_t s,
                int64_t order) {
  const NoiseLevel& from = levels[s];
  const NoiseLevel& to = levels[s + 1];
  const double h = log_snr(to) - log_snr(from);
  if (std::fabs(h) < kSameLevel) {
    return {.x = 1.0, .d0 = 0.0, .scale = 0.0, .ratios = {}, .predictor = {}, .corrector = {0.0}};
  }
  const double signed_h = solver.predict_x0 ? -h : h;
  const double phi_1 = std::expm1(signed_h);
  const double b_h = solver.bh2 ? phi_1 : signed_h;
  const double outer = solver.predict_x0 ? to.alpha : to.sigma;
  Bh result{.x = solver.predict_x0 ? to.sigma / from.sigma : to.alpha / from.alpha,
            .d0 = -outer * phi_1,
            .scale = -outer * b_h,
            .ratios = {},
            .predictor = {},
            .corrector = {0.5}};
  if (order == 1) {
    return result;
  }
  std::vector<double> ratios;
  for (int64_t i = 1; i < order; ++i) {
    ratios.push_back((log_snr(levels[s - static_cast<size_t>(i)]) - log_snr(from)) / h);
  }
  result.ratios = ratios;
  ratios.push_back(1.0);
  Matrix powers;
  std::vector<double> moments;
  double phi_k = phi_1 / signed_h - 1.0;
  double factorial = 1.0;
  for (int64_t k = 1; k <= order; ++k) {
    std::vector<double> row;
    row.reserve(ratios.size());
    for (const double ratio : ratios) {
      row.push_back(std::pow(ratio, static_cast<double>(k - 1)));
    }
    powers.push_back(row);
    moments.push_back(phi_k * factorial / b_h);
    factorial *= static_cast<double>(k + 1);
    phi_k = phi_k / signed_h - 1.0 / factorial;
  }
  result.corrector = solved(powers, moments);
  if (order == 2) {
    result.predictor = {0.5};  // as the authors have it, for both forms of B(h)
    return result;
  }
  Matrix inner(powers.begin(), powers.end() - 1);
  for (std::vector<double>& row : inner) {
    row.pop_back();
  }
  moments.pop_back();
  result.predictor = solved(inner, moments);
  return result;
}

/// Adds weights of the differences (m_i - m0) / r_i to a history whose m0 is at `first`.
void add_differences(const Bh& bh, const std::vector<double>& weights, size_t first,
                     std::vector<double>& history) {
  for (size_t i = 0; i < bh.ratios.size(); ++i) {
    const double weight = bh.scale * weights[i] / bh.ratios[i];
    history[first + i + 1] += weight;
    history[first] -= weight;
  }
}

}  // namespace

SolverPlan unipc(const NoiseLevels& noise_levels, const UniPc& solver) {
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  const auto num_steps = static_cast<int64_t>(levels.size()) - 1;
  KINORA_CHECK(solver.order >= 1 && solver.order <= 3, kConfig,
               "[sampler] UniPC's order must lie in 1..3, got ", solver.order, ".");
  const int64_t final_order = solver.lower_order_final ? 1 : std::min(solver.order, num_steps);
  KINORA_CHECK(levels.back().sigma > 0.0 || (solver.predict_x0 && final_order == 1), kConfig,
               "[sampler] UniPC can end without noise only where it integrates the data and the "
               "last step is of order 1. Hint: lower_order_final");
  const Limit limit = solver.predict_x0 ? solver.limit : Limit{};
  SolverPlan plan{.steps = {}, .initial_scale = noise_levels.initial_scale, .limit = limit};
  int64_t last_order = 0;
  for (int64_t k = 0; k < num_steps; ++k) {
    const auto i = static_cast<size_t>(k);
    SolverStep step =
        evaluation(levels[i], solver.predict_x0 ? Kept{.x0 = 1.0} : noise_of(levels[i]), limit);
    const bool skipped = std::find(solver.without_corrector.begin(), solver.without_corrector.end(),
                                   k - 1) != solver.without_corrector.end();
    if (k > 0 && !skipped) {
      const Bh bh = coefficients(solver, levels, i - 1, last_order);
      Update corrector{.anchor = bh.x,
                       .history = std::vector<double>(static_cast<size_t>(last_order) + 1)};
      corrector.history[1] = bh.d0;
      add_differences(bh, bh.corrector, 1, corrector.history);
      corrector.history[0] = bh.scale * bh.corrector.back();
      corrector.history[1] -= bh.scale * bh.corrector.back();
      step.corrector = corrector;
    }
    int64_t order = std::min(solver.order, k + 1);
    if (solver.lower_order_final) {
      order = std::min(order, num_steps - k);
    }
    const Bh bh = coefficients(solver, levels, i, order);
    step.next = {.x = bh.x, .history = std::vector<double>(static_cast<size_t>(order))};
    step.next.history[0] = bh.d0;
    add_differences(bh, bh.predictor, 0, step.next.history);
    step.keep_anchor = true;
    plan.steps.push_back(step);
    last_order = order;
  }
  return plan;
}

}  // namespace kinora::diffusion
