#include "kinora/diffusion/solver_plan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"

namespace kinora::diffusion {
namespace {

/// A sum that allocates once and takes a kernel a term.
class Sum {
 public:
  void add(double coefficient, const at::Tensor& term) {
    if (coefficient == 0.0) {
      return;
    }
    if (total_.defined()) {
      total_.add_(term, coefficient);
    } else {
      total_ = coefficient * term;
    }
  }
  [[nodiscard]] at::Tensor total(const at::Tensor& like) const {
    return total_.defined() ? total_ : at::zeros_like(like);
  }

 private:
  at::Tensor total_;
};

/// [B] -> as many dims as x.
at::Tensor spread(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[0] = x.size(0);
  return values.view(shape);
}

/// The quantile over all but the first dim, [B], linear between neighbours. (at::quantile makes a
/// tensor of the ratio, and checks its values on the host.)
at::Tensor quantile(const at::Tensor& x, double ratio) {
  const at::Tensor sorted = std::get<0>(at::sort(x.flatten(1), 1));
  const double place = ratio * static_cast<double>(sorted.size(1) - 1);
  const auto low = static_cast<int64_t>(std::floor(place));
  const int64_t high = std::min(low + 1, sorted.size(1) - 1);
  const double share = place - std::floor(place);
  return (1.0 - share) * sorted.select(1, low) + share * sorted.select(1, high);
}

size_t longest_history(const SolverPlan& plan) {
  size_t depth = 1;
  for (const SolverStep& step : plan.steps) {
    depth = std::max(depth, step.next.history.size());
    if (step.corrector.has_value()) {
      depth = std::max(depth, step.corrector->history.size());
    }
  }
  return depth;
}

at::Tensor deviation(const PredictedNoise& noise, const at::Tensor& output) {
  if (!noise.range) {
    return output.sqrt();
  }
  const at::Tensor fraction = (output + 1.0) / 2.0;
  return (0.5 * (fraction * (noise.max_log - noise.min_log) + noise.min_log)).exp();
}

}  // namespace

at::Tensor limited(const Limit& limit, const at::Tensor& x0) {
  switch (limit.kind) {
    case Limit::Kind::kNone:
      return x0;
    case Limit::Kind::kClip:
      return x0.clamp(-limit.max, limit.max);
    case Limit::Kind::kThreshold: {
      const at::Tensor bound = spread(quantile(x0.abs(), limit.ratio).clamp(1.0, limit.max), x0);
      return at::clamp(x0, -bound, bound) / bound;
    }
  }
  KINORA_UNREACHABLE("[sampler] unknown limit");
}

bool needs_noise(const SolverStep& step) {
  return step.next.noise != 0.0 || step.predicted_noise.has_value();
}

SolverState::SolverState(const SolverPlan& plan) : plan_(plan), depth_(longest_history(plan)) {}

at::Tensor SolverState::updated(const Update& update, const at::Tensor& x, const at::Tensor& x0,
                                const at::Tensor& noise) const {
  Sum sum;
  sum.add(update.x, x);
  sum.add(update.x0, x0);
  sum.add(update.anchor, anchor_);
  for (size_t age = 0; age < update.history.size(); ++age) {
    sum.add(update.history[age], history_[age]);
  }
  sum.add(update.noise, noise);
  sum.add(update.last_noise, last_noise_);
  return sum.total(x);
}

SolverState::Result SolverState::step(int64_t index, const at::Tensor& x,
                                      const at::Tensor& prediction, const at::Tensor& noise) {
  const SolverStep& step = plan_.steps[static_cast<size_t>(index)];
  const int64_t channels = x.size(1);
  const at::Tensor output = prediction.narrow(1, 0, channels);
  Sum clean;
  clean.add(step.x0_from_x, x);
  clean.add(step.x0_from_prediction, output);
  const at::Tensor x0 = limited(plan_.limit, clean.total(x));
  Sum kept;
  kept.add(step.kept.x, x);
  kept.add(step.kept.x0, x0);
  kept.add(step.kept.prediction, output);
  history_.push_front(kept.total(x));
  if (history_.size() > depth_) {
    history_.pop_back();
  }
  const at::Tensor from = step.corrector.has_value() ? updated(*step.corrector, x, x0, noise) : x;
  if (step.keep_anchor) {
    anchor_ = from;
  }
  at::Tensor next = updated(step.next, from, x0, noise);
  if (step.predicted_noise.has_value()) {
    KINORA_CHECK(prediction.size(1) == 2 * channels, kShape, "[sampler] a learned variance needs ",
                 2 * channels, " channels predicted, got ", prediction.size(1),
                 ". Hint: this denoiser learned none; ask for a fixed variance.");
    next =
        next + deviation(*step.predicted_noise, prediction.narrow(1, channels, channels)) * noise;
  }
  last_noise_ = noise;
  return {next, x0};
}

}  // namespace kinora::diffusion
