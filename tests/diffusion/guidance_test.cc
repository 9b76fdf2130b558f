#include "kinora/diffusion/guidance.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "kinora/core/error.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/diffusion/spacing.h"
#include "tests/diffusion/tensors.h"

namespace kinora::diffusion {
namespace guidance_test {

constexpr int64_t kNull = 10;

/// Predicts channel + 100 * label in `width` times x_t's channels, and counts rows.
class LabelDenoiser : public Denoiser {
 public:
  explicit LabelDenoiser(int64_t width) : width_(width) {}
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/, const Conditions& conditions,
                     const Pass& /*pass*/) override {
    rows.push_back(x_t.size(0));
    const int64_t channels = width_ * x_t.size(1);
    const at::Tensor by_channel = at::arange(channels, at::kFloat).view({1, channels, 1, 1});
    const at::Tensor by_label = 100.0 * conditions.labels.to(at::kFloat).view({-1, 1, 1, 1});
    return (by_channel + by_label).expand({x_t.size(0), channels, x_t.size(2), x_t.size(3)});
  }
  std::vector<int64_t> rows;

 private:
  int64_t width_;
};

Conditions labels(const std::vector<int64_t>& values) {
  return {at::tensor(values, at::kLong)};
}

const at::Tensor& pictures() {
  static const at::Tensor kPictures = at::full({2, 4, 2, 2}, 0.5, at::kFloat);
  return kPictures;
}

/// Per-channel predictions for the labels 1 and 2, [2, channels].
at::Tensor predicted(LabelDenoiser& denoiser, const Guidance& guidance, double level = 0.5) {
  GuidedDenoiser guided_denoiser(denoiser, labels({1, 2}), guidance);
  const at::Tensor result = guided_denoiser.predict(pictures(), 3.0, level);
  EXPECT_EQ(max_difference(result, result.narrow(2, 0, 1).narrow(3, 0, 1).expand_as(result)), 0.0);
  return result.select(3, 0).select(2, 0);
}

Guidance with(double scale, GuidanceChannels channels = GuidanceChannels::kAll) {
  return {.scale = scale, .channels = channels, .null = labels({kNull, kNull})};
}

TEST(GuidanceTest, MovesAllChannelsOfTheDataAndKeepsTheVariance) {
  LabelDenoiser denoiser(2);
  const at::Tensor got = predicted(denoiser, with(4.0));
  ASSERT_EQ(got.sizes(), (std::vector<int64_t>{2, 8}));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t c = 0; c < 8; ++c) {
      const double cond = static_cast<double>(c + 100 * (b + 1));
      const double uncond = static_cast<double>(c + 100 * kNull);
      const double expected = c < 4 ? uncond + 4.0 * (cond - uncond) : cond;
      EXPECT_FLOAT_EQ(got[b][c].item<float>(), static_cast<float>(expected)) << b << ", " << c;
    }
  }
  EXPECT_EQ(denoiser.rows, std::vector<int64_t>{4});  // one forward of [cond; uncond]
}

TEST(GuidanceTest, MovesThreeChannelsAsTheOriginal) {
  LabelDenoiser denoiser(2);
  const at::Tensor got = predicted(denoiser, with(1.5, GuidanceChannels::kFirstThree));
  for (int64_t c = 0; c < 8; ++c) {
    const double cond = static_cast<double>(c + 100);
    const double uncond = static_cast<double>(c + 100 * kNull);
    const double expected = c < 3 ? uncond + 1.5 * (cond - uncond) : cond;
    EXPECT_FLOAT_EQ(got[0][c].item<float>(), static_cast<float>(expected)) << c;
  }
}

TEST(GuidanceTest, WorksWithoutALearnedVariance) {
  LabelDenoiser denoiser(1);
  const at::Tensor got = predicted(denoiser, with(0.0));
  EXPECT_EQ(got.sizes(), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(got[0][3].item<float>(), 1003.0F);  // scale 0: the unconditional prediction
}

TEST(GuidanceTest, RescaleKeepsTheDeviationOfTheConditional) {
  // Lin et al. 2024, eq. 14 to 16, as diffusers' rescale_noise_cfg: deviations with n - 1.
  const at::Tensor cond =
      at::tensor({1.0, 2.0, 3.0, 6.0, 0.0, 4.0, 4.0, 0.0, 9.0, 9.0, 9.0, 9.0}, at::kFloat)
          .view({1, 3, 2, 2});
  const at::Tensor moved = 3.0 * cond + 1.0;
  const at::Tensor data = moved.narrow(1, 0, 2);
  const at::Tensor whole = rescaled(moved, cond, 1.0, 2);
  EXPECT_LT(max_difference(whole.narrow(1, 0, 2), data / 3.0), 1e-6);
  EXPECT_EQ(max_difference(whole.narrow(1, 2, 1), moved.narrow(1, 2, 1)), 0.0);
  const at::Tensor part = rescaled(moved, cond, 0.7, 2);
  EXPECT_LT(max_difference(part.narrow(1, 0, 2), 0.7 * data / 3.0 + 0.3 * data), 1e-5);
  // And in guidance, where labels 1 and 10 differ by a constant: the deviations are equal.
  LabelDenoiser denoiser(2);
  Guidance guidance = with(4.0);
  const at::Tensor plain = predicted(denoiser, guidance);
  guidance.rescale = 0.7;
  EXPECT_LT(max_difference(predicted(denoiser, guidance), plain), 1e-2);  // of values of 4000
}

TEST(GuidanceTest, ScaleOneIsTheConditionalPrediction) {
  LabelDenoiser denoiser(1);
  const at::Tensor got = predicted(denoiser, {.scale = 1.0});
  EXPECT_EQ(got[1][3].item<float>(), 203.0F);
  EXPECT_EQ(denoiser.rows, std::vector<int64_t>{2});  // no doubled batch
}

TEST(GuidanceTest, OutsideTheIntervalIsTheConditionalPrediction) {
  Guidance guidance = with(3.0);
  guidance.low = 0.25;
  guidance.high = 0.75;
  LabelDenoiser denoiser(1);
  for (const double level : {0.2, 0.8}) {
    EXPECT_EQ(predicted(denoiser, guidance, level)[0][0].item<float>(), 100.0F) << level;
  }
  EXPECT_EQ(denoiser.rows, (std::vector<int64_t>{2, 2}));
  for (const double level : {0.25, 0.5, 0.75}) {
    EXPECT_EQ(predicted(denoiser, guidance, level)[0][0].item<float>(), -1700.0F) << level;
  }
}

TEST(GuidanceTest, SamplersCountTheIntervalFromCleanToNoise) {
  Guidance guidance = with(3.0);
  guidance.low = 0.5;
  LabelDenoiser denoiser(1);
  const SampleKey key{.seed = 1, .sample_index = sample_numbers(2)};
  static_cast<void>(sample(denoiser, FlowEulerSampler{euler_times({}, 4)}, {2, 4, 2, 2},
                           labels({1, 2}), guidance, key, at::kCPU));
  EXPECT_EQ(denoiser.rows, (std::vector<int64_t>{4, 4, 4, 2}));  // 1, 0.75, 0.5 | 0.25
  denoiser.rows.clear();
  guidance.high = 0.9;
  const DiscreteSchedule schedule =
      respaced(linear_schedule(), spaced_timesteps(1000, Spacing::kDit, 4));
  static_cast<void>(sample(denoiser, DdimSampler{schedule}, {2, 4, 2, 2}, labels({1, 2}), guidance,
                           key, at::kCPU));
  EXPECT_EQ(denoiser.rows, (std::vector<int64_t>{2, 4, 2, 2}));  // 999 | 666 | 333, 0
}

TEST(GuidanceTest, RefusesUnusableSettings) {
  LabelDenoiser denoiser(1);
  const Conditions conditions = labels({1, 2});
  const auto make = [&](const Conditions& given, const Guidance& guidance) {
    const GuidedDenoiser made(denoiser, given, guidance);
  };
  EXPECT_NO_THROW(make(conditions, with(2.0)));
  EXPECT_THROW(make(conditions, {.scale = 2.0}), Error);
  EXPECT_THROW(make({}, with(2.0)), Error);
  EXPECT_THROW(make(conditions, with(std::numeric_limits<double>::infinity())), Error);
  Guidance guidance = with(2.0);
  guidance.null = labels({kNull});
  EXPECT_THROW(make(conditions, guidance), Error);
  for (const auto& [low, high] : {std::pair{0.6, 0.4}, {-0.1, 1.0}, {0.0, 1.1}}) {
    guidance = with(2.0);
    guidance.low = low;
    guidance.high = high;
    EXPECT_THROW(make(conditions, guidance), Error);
  }
  guidance = with(2.0);
  guidance.rescale = 1.5;
  EXPECT_THROW(make(conditions, guidance), Error);
  LabelDenoiser three(3);
  EXPECT_THROW(static_cast<void>(predicted(three, with(2.0))), Error);
}

}  // namespace guidance_test
}  // namespace kinora::diffusion
