#include "kinora/diffusion/sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kinora/core/error.h"
#include "kinora/diffusion/spacing.h"
#include "kinora/ops/random.h"
#include "tests/diffusion/tensors.h"
#include "tests/diffusion/toy_denoisers.h"

namespace kinora::diffusion {
namespace sampler_test {

DiscreteSchedule spaced(Spacing spacing, int64_t steps) {
  return respaced(linear_schedule(), spaced_timesteps(1000, spacing, steps));
}

at::Tensor run(Denoiser& denoiser, const Sampler& sampler, int64_t count, int64_t first = 0,
               const SampleCallback& callback = {}) {
  return sample(denoiser, sampler, {count, 2, 16, 16}, {}, {},
                {.seed = 3, .sample_index = sample_numbers(count, first)}, at::kCPU, callback);
}

at::Tensor initial_noise(int64_t count) {
  return ops::random_normal({count, 2, 16, 16}, sample_numbers(count), 3, 0,
                            RandomPurpose::kInitialNoise, at::kCPU);
}

/// Returns x_t's shape filled with `value`, and keeps what it was called with.
class Constant : public Denoiser {
 public:
  explicit Constant(double value) : value_(value) {}
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t, const Conditions&,
                     const Pass& /*pass*/) override {
    times.push_back(t[0].item<float>());
    EXPECT_EQ(t.sizes(), (std::vector<int64_t>{x_t.size(0)}));
    EXPECT_EQ(t.scalar_type(), at::kFloat);
    return at::full_like(x_t, value_);
  }
  std::vector<float> times;

 private:
  double value_;
};

std::vector<Sampler> all_samplers() {
  return {DdpmSampler{spaced(Spacing::kDit, 7), Variance::kLearnedRange, false},
          DdpmSampler{spaced(Spacing::kDit, 7), Variance::kFixedLarge, true},
          DdimSampler{spaced(Spacing::kTrailing, 7), 0.0, false},
          DdimSampler{spaced(Spacing::kTrailing, 7), 0.5, true}};
}

TEST(SampleTest, AnyBatchSizeGivesTheSameImages) {
  ToyEps toy(/*learned_variance=*/true);
  for (const Sampler& sampler : all_samplers()) {
    const at::Tensor whole = run(toy, sampler, 5);
    EXPECT_EQ(whole.scalar_type(), at::kFloat);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 3}, {4, 1}}) {
      EXPECT_EQ(max_difference(run(toy, sampler, count, first), whole.narrow(0, first, count)),
                0.0);
    }
    EXPECT_GT(max_difference(whole[0], whole[1]), 0.1);
  }
}

TEST(SampleTest, StepsGetFreshNoiseByTheirNumber) {
  // By hand, for three steps of DDPM, of which the last adds none.
  ToyEps toy(/*learned_variance=*/true);
  const DdpmSampler sampler{spaced(Spacing::kDit, 3), Variance::kLearnedRange, false};
  at::Tensor x = initial_noise(3);
  const std::vector<double> times = {999.0, 500.0, 0.0};
  for (int64_t k = 0; k < 3; ++k) {
    const at::Tensor noise =
        ops::random_normal({3, 2, 16, 16}, sample_numbers(3), 3, static_cast<uint32_t>(k),
                           RandomPurpose::kSamplerNoise, at::kCPU);
    const at::Tensor t = at::full({3}, times[k], at::kFloat);
    x = ddpm_step(sampler, 2 - k, x, toy.forward(x, t, {}), noise).x;
  }
  EXPECT_EQ(max_difference(run(toy, sampler, 3), x), 0.0);
}

TEST(SampleTest, ShowsTheDenoiserTimestepsOfTheTrainingSchedule) {
  Constant denoiser(0.0);
  static_cast<void>(run(denoiser, DdimSampler{spaced(Spacing::kLeading, 4)}, 2));
  EXPECT_EQ(denoiser.times, (std::vector<float>{750.0F, 500.0F, 250.0F, 0.0F}));
  denoiser.times.clear();
  static_cast<void>(run(denoiser, FlowEulerSampler{euler_times({}, 4)}, 2));
  EXPECT_EQ(denoiser.times, (std::vector<float>{1.0F, 0.75F, 0.5F, 0.25F}));
}

TEST(SampleTest, ConstantVelocityIsFollowedExactly) {
  for (const double shift : {1.0, 3.0}) {
    for (const int64_t steps : {1, 3, 50}) {
      Constant denoiser(0.75);
      const at::Tensor x = run(denoiser, FlowEulerSampler{euler_times({shift}, steps)}, 2);
      // Half a unit in the last place of x < 8 a step.
      const double rounding = 0x1p-22 * static_cast<double>(steps + 1);
      EXPECT_LT(max_difference(x, initial_noise(2) - 0.75), rounding) << shift << ", " << steps;
    }
  }
}

TEST(SampleTest, EtaOneIsDdpmWithTheSmallVariance) {
  // Song et al. 2021a, section 4.1.
  ToyEps toy(/*learned_variance=*/false);
  const DiscreteSchedule schedule = spaced(Spacing::kDit, 25);
  const at::Tensor ddim = run(toy, DdimSampler{schedule, 1.0}, 3);
  const at::Tensor ddpm = run(toy, DdpmSampler{schedule, Variance::kFixedSmall}, 3);
  EXPECT_LT(max_difference(ddim, ddpm), 2e-5);
}

/// E[eps | x_t] for Gaussian data under our own tables.
class ExactEps : public Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t, const Conditions&,
                     const Pass& /*pass*/) override {
    const double alpha_bar = schedule_.alphas_cumprod[static_cast<size_t>(t[0].item<float>())];
    return (x_t - std::sqrt(alpha_bar) * data.mean) *
           (std::sqrt(1.0 - alpha_bar) / (alpha_bar * data.std * data.std + 1.0 - alpha_bar));
  }
  GaussianData data;

 private:
  DiscreteSchedule schedule_ = linear_schedule();
};

/// Mean and deviation of 40 x 512 samples, against the data's: standard errors 0.0035 and 0.0025.
void expect_data(const at::Tensor& x, const GaussianData& data) {
  EXPECT_NEAR(x.mean().item<double>(), data.mean, 0.015);
  EXPECT_NEAR(x.std().item<double>(), data.std, 0.015);
}

TEST(SampleTest, GaussianDataAreSampled) {
  ExactEps eps;
  expect_data(run(eps, DdpmSampler{spaced(Spacing::kDit, 250), Variance::kFixedLarge}, 40),
              eps.data);
  expect_data(run(eps, DdpmSampler{spaced(Spacing::kDit, 250), Variance::kFixedSmall}, 40),
              eps.data);
  expect_data(run(eps, DdimSampler{spaced(Spacing::kTrailing, 250), 0.0}, 40), eps.data);
  expect_data(run(eps, DdimSampler{spaced(Spacing::kTrailing, 250), 1.0}, 40), eps.data);
  ToyVelocity velocity;
  expect_data(run(velocity, FlowEulerSampler{euler_times({}, 250)}, 40), eps.data);
  expect_data(run(velocity, FlowEulerSampler{euler_times({2.0}, 250)}, 40), eps.data);
}

TEST(SampleTest, EulerConvergesInFirstOrder) {
  // The flow's map for Gaussian data is x -> mean + std x: half the step, half the error.
  ToyVelocity toy;
  const at::Tensor exact = 0.3 + 0.5 * initial_noise(2);
  const double coarse = max_difference(run(toy, FlowEulerSampler{euler_times({}, 100)}, 2), exact);
  const double fine = max_difference(run(toy, FlowEulerSampler{euler_times({}, 200)}, 2), exact);
  EXPECT_NEAR(coarse / fine, 2.0, 0.1);
}

TEST(SampleTest, ReportsEveryStepAndTheEstimate) {
  ToyEps toy(/*learned_variance=*/false);
  std::vector<int64_t> steps;
  at::Tensor last;
  const at::Tensor x =
      run(toy, DdimSampler{spaced(Spacing::kDit, 5)}, 2, 0, [&](const SampleProgress& progress) {
        EXPECT_EQ(progress.total, 5);
        steps.push_back(progress.step);
        last = progress.x0;
      });
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(max_difference(last, x), 0.0);  // DDIM ends in its estimate
}

TEST(SampleTest, VideoHasOneMoreDim) {
  Constant denoiser(0.25);
  const at::Tensor x = sample(denoiser, FlowEulerSampler{euler_times({}, 2)}, {2, 3, 4, 2, 2}, {},
                              {}, {.seed = 1, .sample_index = sample_numbers(2)}, at::kCPU);
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{2, 3, 4, 2, 2}));
}

/// A velocity that depends on place and time, but not on other frames. Keeps the masks it was
/// shown.
class FrameFlow : public Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t, const Conditions& conditions,
                     const Pass& /*pass*/) override {
    noised.push_back(conditions.frame_mask.defined()
                         ? conditions.frame_mask.clone()
                         : at::ones({x_t.size(0), x_t.size(2)}, at::kBool));
    shown.push_back(x_t.clone());
    return (2.0 * x_t + t.view({-1, 1, 1, 1, 1})).sin();
  }
  std::vector<at::Tensor> noised;
  std::vector<at::Tensor> shown;
};

/// Clips of two given frames, 1 and 3, of five.
struct GivenClips {
  std::vector<int64_t> shape = {2, 3, 5, 2, 4};
  Conditions conditions;
  SampleKey key = {.seed = 3, .sample_index = sample_numbers(2)};

  GivenClips() {
    conditions.frame_mask = at::tensor({1, 0, 1, 0, 1}, at::kLong).to(at::kBool).expand({2, 5});
    conditions.given = at::where(conditions.frame_mask.view({2, 1, 5, 1, 1}), at::zeros(shape),
                                 noise(9, RandomPurpose::kTest));
  }
  [[nodiscard]] at::Tensor noise(uint32_t step, RandomPurpose purpose) const {
    return ops::random_normal(shape, key.sample_index, key.seed, step, purpose, at::kCPU);
  }
};

/// The sampling loop that Open-Sora 1.2 published, with its masks: a number a frame, 1 where it is
/// drawn, 0 where it is kept, between them the edit ratio of a frame that is given.
at::Tensor published_loop(FrameFlow& flow, const GivenClips& clips,
                          const FlowEulerSampler& sampler) {
  const at::Tensor mask =
      at::where(clips.conditions.frame_mask, 1.0, sampler.given_edit);  // [B, T]
  const auto of_frames = [](const at::Tensor& frames) { return frames.view({2, 1, 5, 1, 1}); };
  at::Tensor z = at::where(of_frames(clips.conditions.frame_mask),
                           clips.noise(0, RandomPurpose::kInitialNoise), clips.conditions.given);
  at::Tensor has_noise = mask == 1.0;
  for (size_t k = 0; k + 1 < sampler.times.size(); ++k) {
    const double t = sampler.times[k];
    const at::Tensor drawn = mask >= t;
    const at::Tensor fresh = clips.noise(static_cast<uint32_t>(k), RandomPurpose::kSamplerNoise);
    z = at::where(of_frames(drawn & ~has_noise), (1.0 - t) * z + t * fresh, z);
    has_noise = drawn;
    const at::Tensor velocity =
        flow.forward(z, at::full({2}, t, at::kFloat), {.frame_mask = drawn});
    z = at::where(of_frames(drawn), z + (sampler.times[k + 1] - t) * velocity, z);
  }
  return z;
}

TEST(SampleTest, GivenFramesJoinAtTheirEditRatio) {
  const GivenClips clips;
  for (const double edit : {0.0, 0.1, 0.5, 0.6}) {
    const FlowEulerSampler sampler{.times = euler_times({2.0}, 6), .given_edit = edit};
    FrameFlow ours;
    FrameFlow published;
    const at::Tensor x =
        sample(ours, sampler, clips.shape, clips.conditions, {}, clips.key, at::kCPU);
    EXPECT_LT(max_difference(x, published_loop(published, clips, sampler)), 1e-6) << edit;
    ASSERT_EQ(ours.noised.size(), published.noised.size());
    for (size_t k = 0; k < ours.noised.size(); ++k) {
      EXPECT_TRUE(at::equal(ours.noised[k], published.noised[k])) << edit << ", step " << k;
    }
  }
}

TEST(SampleTest, EditedFramesOfAConstantVelocity) {
  // Noised to 0.5, and from there on moved by the velocity over half the time.
  const GivenClips clips;
  Constant denoiser(0.75);
  int64_t steps = 0;
  const at::Tensor x =
      sample(denoiser, FlowEulerSampler{.times = euler_times({}, 4), .given_edit = 0.6},
             clips.shape, clips.conditions, {}, clips.key, at::kCPU,
             [&](const SampleProgress& progress) { EXPECT_EQ(progress.step, ++steps); });
  EXPECT_EQ(steps, 4);
  const at::Tensor expected =
      0.5 * clips.conditions.given + 0.5 * (clips.noise(2, RandomPurpose::kSamplerNoise) - 0.75);
  EXPECT_LT(max_difference(x.select(2, 3), expected.select(2, 3)), 1e-6);
  EXPECT_LT(max_difference(x.select(2, 0),
                           clips.noise(0, RandomPurpose::kInitialNoise).select(2, 0) - 0.75),
            2e-6);
  // From the start on, as if they had not been given.
  const at::Tensor all =
      sample(denoiser, FlowEulerSampler{.times = euler_times({}, 4), .given_edit = 1.0},
             clips.shape, clips.conditions, {}, clips.key, at::kCPU);
  EXPECT_LT(max_difference(all.select(2, 1),
                           clips.noise(0, RandomPurpose::kSamplerNoise).select(2, 1) - 0.75),
            2e-6);
}

TEST(SampleTest, GivenFramesAreShownWithNoise) {
  const GivenClips clips;
  FrameFlow denoiser;
  const FlowEulerSampler sampler{.times = euler_times({}, 4), .given_noise = 0.2};
  const at::Tensor x =
      sample(denoiser, sampler, clips.shape, clips.conditions, {}, clips.key, at::kCPU);
  ASSERT_EQ(denoiser.shown.size(), 4U);
  for (size_t k = 0; k < 4; ++k) {
    const double t = sampler.times[k];
    const at::Tensor noise = clips.noise(static_cast<uint32_t>(k), RandomPurpose::kSamplerNoise);
    const at::Tensor want = clips.conditions.given + 0.2 * t * t * noise;
    for (const int64_t frame : {1, 3}) {
      EXPECT_LT(max_difference(denoiser.shown[k].select(2, frame), want.select(2, frame)), 1e-6);
    }
  }
  for (const int64_t frame : {1, 3}) {
    EXPECT_TRUE(x.select(2, frame).equal(clips.conditions.given.select(2, frame)));
  }
}

TEST(SampleTest, RecordsNoGradients) {
  class Scaled : public Denoiser {
   public:
    at::Tensor predict(const at::Tensor& x_t, const at::Tensor&, const Conditions&,
                       const Pass& /*pass*/) override {
      return x_t * weight;
    }
    at::Tensor weight = at::full({1}, 0.5, at::kFloat).requires_grad_();
  };
  Scaled denoiser;
  EXPECT_FALSE(run(denoiser, FlowEulerSampler{euler_times({}, 2)}, 2).requires_grad());
}

TEST(SampleTest, RefusesWhatDoesNotFit) {
  ToyEps toy(/*learned_variance=*/false);
  const DiscreteSchedule schedule = spaced(Spacing::kDit, 2);
  EXPECT_THROW(static_cast<void>(run(toy, DdpmSampler{schedule, Variance::kLearnedRange}, 2)),
               Error);
  EXPECT_THROW(static_cast<void>(run(toy, DdimSampler{schedule, 1.5}, 2)), Error);
  EXPECT_THROW(static_cast<void>(run(toy, DdimSampler{schedule, -0.1}, 2)), Error);
  EXPECT_THROW(static_cast<void>(run(toy, FlowEulerSampler{{1.0}}, 2)), Error);
  EXPECT_THROW(static_cast<void>(run(toy, FlowEulerSampler{}, 2)), Error);
  EXPECT_THROW(static_cast<void>(sample(toy, DdimSampler{schedule}, {3, 2, 4, 4}, {}, {},
                                        {.seed = 1, .sample_index = sample_numbers(2)}, at::kCPU)),
               Error);
}

}  // namespace sampler_test
}  // namespace kinora::diffusion
