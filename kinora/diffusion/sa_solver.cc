#include "kinora/diffusion/sa_solver.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/diffusion/solver_steps.h"

namespace kinora::diffusion {
namespace {

constexpr int64_t kMostSaOrder = 4;

/// Integrals of e^(rate u) times the Lagrange polynomials of `nodes` over u from -length to 0.
std::vector<double> integrals(const std::vector<double>& nodes, double rate, double length) {
  std::vector<double> moments;  // of u^p
  const double decay = std::exp(-rate * length);
  for (size_t p = 0; p < nodes.size(); ++p) {
    const double boundary =
        (p == 0 ? 1.0 : 0.0) - std::pow(-length, static_cast<double>(p)) * decay;
    moments.push_back(p == 0 ? -std::expm1(-rate * length) / rate
                             : (boundary - static_cast<double>(p) * moments.back()) / rate);
  }
  std::vector<double> result;
  for (size_t j = 0; j < nodes.size(); ++j) {
    const std::vector<double> powers = lagrange_polynomial(nodes, j);
    double sum = 0.0;
    for (size_t p = 0; p < powers.size(); ++p) {
      sum += powers[p] * moments[p];
    }
    result.push_back(sum);
  }
  return result;
}

/// A step from level s to t.
class SaStep {
 public:
  SaStep(const SaSolver& solver, const NoiseLevel& s, const NoiseLevel& t)
      : predict_x0_(solver.predict_x0),
        // Of the noise's variance in log(alpha / sigma).
        square_(s.t >= solver.tau_from && s.t <= solver.tau_to ? solver.tau * solver.tau : 0.0),
        h_(log_snr(t) - log_snr(s)),
        s_(s),
        t_(t) {}

  [[nodiscard]] double of_x() const {
    return predict_x0_ ? std::exp(-square_ * h_) * t_.sigma / s_.sigma : t_.alpha / s_.alpha;
  }
  [[nodiscard]] double of_noise() const {
    return predict_x0_ ? t_.sigma * std::sqrt(-std::expm1(-2.0 * square_ * h_))
                       : std::sqrt(square_ * std::expm1(2.0 * h_)) * t_.sigma;
  }

  /// Weights of what was evaluated at `levels`. The sum of two gets what makes its error smaller in
  /// few steps, of third order, as UniPC has it: `ahead` where the first is that of t.
  [[nodiscard]] std::vector<double> weights(const std::vector<const NoiseLevel*>& levels,
                                            bool ahead) const {
    std::vector<double> nodes;
    for (const NoiseLevel* level : levels) {
      nodes.push_back(log_snr(*level) - log_snr(t_));
    }
    const double rate = predict_x0_ ? 1.0 + square_ : -1.0;
    const double scale = predict_x0_ ? t_.alpha * (1.0 + square_) : -t_.sigma * (1.0 + square_);
    std::vector<double> result = integrals(nodes, rate, h_);
    if (predict_x0_ && levels.size() == 2) {
      const double exact = (h_ * rate + std::expm1(-rate * h_)) / (rate * rate);
      const double moved =
          ahead ? h_ / 2.0 - exact / h_ : (h_ * h_ / 2.0 - exact) / (nodes[0] - nodes[1]);
      result[0] += moved;
      result[1] -= moved;
    }
    for (double& weight : result) {
      weight *= scale;
    }
    return result;
  }

 private:
  bool predict_x0_;
  double square_;
  double h_;
  const NoiseLevel& s_;
  const NoiseLevel& t_;
};

}  // namespace

SolverPlan sa_solver(const NoiseLevels& noise_levels, const SaSolver& solver) {
  const std::vector<NoiseLevel>& levels = noise_levels.levels;
  const auto num_steps = static_cast<int64_t>(levels.size()) - 1;
  for (const int64_t order : {solver.predictor_order, solver.corrector_order}) {
    KINORA_CHECK(order >= 1 && order <= kMostSaOrder, kConfig,
                 "[sampler] SA-Solver's orders must lie in 1..", kMostSaOrder, ", got ", order,
                 ".");
  }
  KINORA_CHECK(solver.predict_x0 || levels.back().sigma > 0.0, kConfig,
               "[sampler] an SA-Solver that integrates noise cannot end without any.");
  // Evaluation i and the ones before it.
  const auto newest = [&levels](size_t i, int64_t count) {
    std::vector<const NoiseLevel*> result;
    for (int64_t j = 0; j < count; ++j) {
      result.push_back(&levels[i - static_cast<size_t>(j)]);
    }
    return result;
  };
  SolverPlan plan{.steps = {}, .initial_scale = noise_levels.initial_scale, .limit = solver.limit};
  for (int64_t k = 0; k < num_steps; ++k) {
    const auto i = static_cast<size_t>(k);
    SolverStep step = evaluation(
        levels[i], solver.predict_x0 ? Kept{.x0 = 1.0} : noise_of(levels[i]), solver.limit);
    if (k > 0) {
      int64_t order = std::min(solver.corrector_order, k + 1);
      if (solver.lower_order_final) {
        order = std::min(order, num_steps - k + 2);
      }
      const SaStep back(solver, levels[i - 1], levels[i]);
      step.corrector = Update{.anchor = back.of_x(),
                              .history = back.weights(newest(i, order), /*ahead=*/true),
                              .last_noise = back.of_noise()};
    }
    int64_t order = std::min(solver.predictor_order, k + 1);
    if (solver.lower_order_final) {
      order = std::min(order, num_steps - k);
    }
    step.keep_anchor = true;
    if (levels[i + 1].sigma == 0.0) {
      step.next = {.x0 = levels[i + 1].alpha};
    } else {
      const SaStep forth(solver, levels[i], levels[i + 1]);
      step.next = {.x = forth.of_x(),
                   .history = forth.weights(newest(i, order), /*ahead=*/false),
                   .noise = forth.of_noise()};
    }
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace kinora::diffusion
