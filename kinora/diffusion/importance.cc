#include "kinora/diffusion/importance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::diffusion {

LossSecondMoment::LossSecondMoment(int64_t num_timesteps) {
  KINORA_CHECK(num_timesteps >= 1, kConfig, "[importance] needs at least 1 timestep, got ",
               num_timesteps, ".");
  state_.history.assign(num_timesteps * kHistoryPerTimestep, 0.0);
  state_.counts.assign(num_timesteps, 0);
}

void LossSecondMoment::update(std::span<const int64_t> timesteps, std::span<const double> losses) {
  KINORA_CHECK(timesteps.size() == losses.size(), kShape,
               "[importance] as many losses as timesteps, got ", losses.size(), " and ",
               timesteps.size(), ".");
  for (size_t i = 0; i < timesteps.size(); ++i) {
    const int64_t t = timesteps[i];
    KINORA_CHECK(t >= 0 && t < num_timesteps(), kShape, "[importance] timesteps lie in 0..",
                 num_timesteps() - 1, ", got ", t, ".");
    if (!std::isfinite(losses[i])) {
      continue;
    }
    const auto history =
        std::span(state_.history).subspan(t * kHistoryPerTimestep, kHistoryPerTimestep);
    if (state_.counts[t] == kHistoryPerTimestep) {
      std::shift_left(history.begin(), history.end(), 1);
      history.back() = losses[i];
    } else {
      history[state_.counts[t]] = losses[i];
      state_.counts[t] += 1;
    }
  }
}

bool LossSecondMoment::warmed_up() const {
  return std::ranges::all_of(state_.counts,
                             [](int64_t count) { return count == kHistoryPerTimestep; });
}

std::vector<double> LossSecondMoment::probabilities() const {
  const double uniform = 1.0 / static_cast<double>(num_timesteps());
  std::vector<double> p(num_timesteps(), uniform);
  if (!warmed_up()) {
    return p;
  }
  for (int64_t t = 0; t < num_timesteps(); ++t) {
    double square = 0.0;
    for (int64_t k = 0; k < kHistoryPerTimestep; ++k) {
      const double loss = state_.history[t * kHistoryPerTimestep + k];
      square += loss * loss;
    }
    p[t] = std::sqrt(square / static_cast<double>(kHistoryPerTimestep));
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) {
    // All losses zero: nothing to prefer.
    const double share = sum > 0.0 ? value / sum : uniform;
    value = share * (1.0 - kUniformProbability) + kUniformProbability * uniform;
  }
  return p;
}

void LossSecondMoment::restore(State state) {
  KINORA_CHECK(
      state.counts.size() == state_.counts.size() && state.history.size() == state_.history.size(),
      kIo, "[importance] the state must be of ", num_timesteps(), " timesteps with ",
      kHistoryPerTimestep, " losses each, got ", state.counts.size(), " counts and ",
      state.history.size(), " losses.");
  for (const int64_t count : state.counts) {
    KINORA_CHECK(count >= 0 && count <= kHistoryPerTimestep, kIo, "[importance] counts lie in 0..",
                 kHistoryPerTimestep, ", got ", count, ".");
  }
  for (const double loss : state.history) {
    KINORA_CHECK(std::isfinite(loss), kIo, "[importance] losses must be finite, got ", loss, ".");
  }
  state_ = std::move(state);
}

}  // namespace kinora::diffusion
