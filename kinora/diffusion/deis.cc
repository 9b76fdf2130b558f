#include "kinora/diffusion/deis.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/diffusion/solver_steps.h"

namespace kinora::diffusion {
namespace {

/// The integral from rho = 0 of the Lagrange polynomial in log(rho) that is 1 at node j.
double log_integral(double rho, const std::vector<double>& nodes, size_t j) {
  if (rho == 0.0) {
    return 0.0;
  }
  std::vector<double> places;  // u = log(rho / end) of the nodes
  places.reserve(nodes.size());
  for (const double node : nodes) {
    places.push_back(std::log(node / rho));
  }
  const std::vector<double> powers = lagrange_polynomial(places, j);
  // The integral of u^p from -infinity to 0 over rho = end e^u is end (-1)^p p!.
  double sum = 0.0;
  double moment = rho;
  for (size_t p = 0; p < powers.size(); ++p) {
    sum += powers[p] * moment;
    moment *= -static_cast<double>(p + 1);
  }
  return sum;
}

/// A step to `to` by a sum of eps whose newest is that of `from`: x / alpha grows by `weights` of
/// them. Written by x_0, since x / alpha is a difference of large numbers where alpha is small.
Update deis_update(const NoiseLevel& from, const NoiseLevel& to, std::vector<double> weights) {
  for (double& weight : weights) {
    weight *= to.alpha;
  }
  weights.front() += to.alpha * from.sigma / from.alpha;
  return {.x0 = to.alpha, .history = weights};
}

}  // namespace

SolverPlan deis(const NoiseLevels& noise_levels, const Deis& solver) {
  KINORA_CHECK(solver.order >= 1 && solver.order <= 3, kConfig,
               "[sampler] the order of DEIS must lie in 1..3, got ", solver.order, ".");
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  const auto num_steps = static_cast<int64_t>(levels.size()) - 1;
  const auto rho = [&levels](size_t i) { return levels[i].sigma / levels[i].alpha; };
  SolverPlan plan{.steps = {}, .initial_scale = noise_levels.initial_scale, .limit = solver.limit};
  for (int64_t k = 0; k < num_steps; ++k) {
    const auto i = static_cast<size_t>(k);
    int64_t order = std::min(solver.order, k + 1);
    if (solver.lower_order_final && num_steps < kFewSteps) {
      order = std::min(order, num_steps - k);
    }
    if (levels[i + 1].sigma == 0.0) {
      order = 1;
    }
    std::vector<double> nodes;
    for (int64_t j = 0; j < order; ++j) {
      nodes.push_back(rho(i - static_cast<size_t>(j)));
    }
    std::vector<double> weights;
    for (size_t j = 0; j < nodes.size(); ++j) {
      weights.push_back(log_integral(rho(i + 1), nodes, j) - log_integral(rho(i), nodes, j));
    }
    SolverStep step = evaluation(levels[i], noise_of(levels[i]), solver.limit);
    step.next = deis_update(levels[i], levels[i + 1], weights);
    plan.steps.push_back(step);
  }
  return plan;
}

SolverPlan ipndm(const NoiseLevels& noise_levels) {
  const std::vector<std::vector<double>> sums = {
      {1.0},
      {1.5, -0.5},
      {23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0},
      {55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0}};
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  SolverPlan plan{.steps = {}, .initial_scale = noise_levels.initial_scale};
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    std::vector<double> weights = sums[std::min<size_t>(i, 3)];
    const double length =
        levels[i + 1].sigma / levels[i + 1].alpha - levels[i].sigma / levels[i].alpha;
    for (double& weight : weights) {
      weight *= length;
    }
    SolverStep step = evaluation(levels[i], noise_of(levels[i]), plan.limit);
    step.next = deis_update(levels[i], levels[i + 1], weights);
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace kinora::diffusion
