#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kinora::diffusion {

/// Importance sampling of timesteps (Nichol and Dhariwal 2021, section 3.3, "loss-second-moment" in
/// improved-diffusion): p_t proportional to sqrt(E[L_t^2]) over the last 10 losses seen at t, mixed
/// with 0.1 % of the uniform distribution; uniform until every timestep has 10 losses. Losses are
/// weighted by 1 / (T p_t), which leaves the expected loss as it was.
class LossSecondMoment {
 public:
  static constexpr int64_t kHistoryPerTimestep = 10;
  static constexpr double kUniformProbability = 1e-3;

  /// What a checkpoint must hold to go on with the same bits.
  struct State {
    std::vector<double> history;  ///< [T, 10] in C order, oldest loss first; 0 where none yet
    std::vector<int64_t> counts;  ///< [T], losses seen, at most 10
  };

  explicit LossSecondMoment(int64_t num_timesteps);

  /// Takes in one unweighted loss a sample, in this order. Every rank must give the losses of all
  /// ranks in the same order. A non-finite loss is left out: it would stay in p_t for good.
  void update(std::span<const int64_t> timesteps, std::span<const double> losses);

  [[nodiscard]] bool warmed_up() const;

  /// p_t, [T], sums to 1.
  [[nodiscard]] std::vector<double> probabilities() const;

  [[nodiscard]] int64_t num_timesteps() const { return static_cast<int64_t>(state_.counts.size()); }
  [[nodiscard]] const State& state() const { return state_; }

  /// Error kIo where the state is of another number of timesteps or was tampered with.
  void restore(State state);

 private:
  State state_;
};

}  // namespace kinora::diffusion
