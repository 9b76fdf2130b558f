#include "kinora/diffusion/importance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kinora/core/error.h"
#include "kinora/diffusion/objective.h"
#include "tests/diffusion/tensors.h"

namespace kinora::diffusion {
namespace importance_test {

/// Gives every timestep ten equal losses.
LossSecondMoment warmed(const std::vector<double>& losses) {
  LossSecondMoment importance(static_cast<int64_t>(losses.size()));
  std::vector<int64_t> timesteps(losses.size());
  std::iota(timesteps.begin(), timesteps.end(), 0);
  for (int i = 0; i < LossSecondMoment::kHistoryPerTimestep; ++i) {
    importance.update(timesteps, losses);
  }
  return importance;
}

TEST(LossSecondMomentTest, ProbabilitiesEqualReferenceSequence) {
  const Records records("importance.txt");
  const Record& expected = records.at("probabilities_every_20");
  const std::vector<double>& losses = records.values("losses");
  LossSecondMoment importance(expected.shape[1]);
  for (size_t i = 0; i < losses.size(); ++i) {
    const int64_t t = static_cast<int64_t>(records.values("timesteps")[i]);
    importance.update(std::span(&t, 1), std::span(&losses[i], 1));
    if ((i + 1) % 20 == 0) {
      const std::vector<double> p = importance.probabilities();
      for (size_t k = 0; k < p.size(); ++k) {
        ASSERT_NEAR(p[k], expected.values[i / 20 * p.size() + k], 1e-15) << i << ", " << k;
      }
    }
  }
  EXPECT_TRUE(importance.warmed_up());
}

TEST(LossSecondMomentTest, IsUniformUntilEveryTimestepHasTenLosses) {
  LossSecondMoment importance(2);
  const std::vector<int64_t> t = {0, 1};
  const std::vector<double> losses = {1.0, 3.0};
  for (int i = 0; i < 9; ++i) {
    importance.update(t, losses);
  }
  EXPECT_FALSE(importance.warmed_up());
  EXPECT_EQ(importance.probabilities(), (std::vector<double>{0.5, 0.5}));
  importance.update(t, losses);
  EXPECT_TRUE(importance.warmed_up());
  EXPECT_NEAR(importance.probabilities()[1], 0.75 * 0.999 + 0.0005, 1e-15);
}

TEST(LossSecondMomentTest, NonFiniteLossesLeaveNoTrace) {
  LossSecondMoment importance = warmed({1.0, 3.0});
  const std::vector<double> before = importance.state().history;
  const std::vector<int64_t> t = {0, 1};
  const std::vector<double> losses = {std::numeric_limits<double>::quiet_NaN(),
                                      std::numeric_limits<double>::infinity()};
  importance.update(t, losses);
  EXPECT_EQ(importance.state().history, before);
}

TEST(LossSecondMomentTest, StateRestoresToTheSameBits) {
  const LossSecondMoment importance = warmed({0.3, 1.0 / 3.0, 7.0});
  LossSecondMoment restored(3);
  restored.restore(importance.state());
  EXPECT_EQ(restored.state().history, importance.state().history);
  EXPECT_EQ(restored.probabilities(), importance.probabilities());
}

TEST(LossSecondMomentTest, RefusesForeignStatesAndTimesteps) {
  LossSecondMoment importance(3);
  EXPECT_THROW(importance.restore(LossSecondMoment(4).state()), Error);
  LossSecondMoment::State state = importance.state();
  state.counts[1] = 11;
  EXPECT_THROW(importance.restore(state), Error);
  state = importance.state();
  state.history[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(importance.restore(state), Error);
  const int64_t outside = 3;
  const double loss = 1.0;
  EXPECT_THROW(importance.update(std::span(&outside, 1), std::span(&loss, 1)), Error);
  EXPECT_THROW(importance.update({}, std::span(&loss, 1)), Error);
  EXPECT_THROW(LossSecondMoment(0), Error);
}

TEST(LossSecondMomentTest, TimestepsAreDrawnByProbabilityAndWeighted) {
  std::vector<double> losses(100, 0.01);
  losses[10] = 1.0;
  losses[90] = 3.0;
  const LossSecondMoment importance = warmed(losses);
  const std::vector<double> p = importance.probabilities();
  constexpr int64_t kDraws = 100000;
  const Timesteps drawn = draw_timesteps(
      Iddpm(100), {.seed = 5, .sample_index = sample_numbers(kDraws)}, at::kCPU, &importance);
  std::vector<int64_t> counts(100, 0);
  const float* t = drawn.t.const_data_ptr<float>();
  const float* weights = drawn.weights.const_data_ptr<float>();
  for (int64_t i = 0; i < kDraws; ++i) {
    const auto index = static_cast<size_t>(t[i]);
    counts[index] += 1;
    ASSERT_FLOAT_EQ(weights[i], static_cast<float>(1.0 / (100.0 * p[index])));
  }
  for (size_t k = 0; k < p.size(); ++k) {
    const double expected = p[k] * kDraws;
    EXPECT_NEAR(static_cast<double>(counts[k]), expected, 5.0 * std::sqrt(expected) + 1.0) << k;
  }
  // Weighted, the draws are uniform again: the mean weight is 1.
  EXPECT_NEAR(drawn.weights.mean().item<double>(), 1.0, 0.05);
}

TEST(LossSecondMomentTest, NeedsADiscreteScheduleOfItsSize) {
  const LossSecondMoment importance(1000);
  const NoiseKey key{.sample_index = sample_numbers(2)};
  EXPECT_THROW(static_cast<void>(draw_timesteps(RectifiedFlow{}, key, at::kCPU, &importance)),
               Error);
  EXPECT_THROW(static_cast<void>(draw_timesteps(Iddpm(500), key, at::kCPU, &importance)), Error);
}

}  // namespace importance_test
}  // namespace kinora::diffusion
