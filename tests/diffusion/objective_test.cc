#include "kinora/diffusion/objective.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"
#include "kinora/ops/random.h"
#include "tests/diffusion/tensors.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora::diffusion {
namespace objective_test {

at::Tensor normals(at::IntArrayRef shape, uint64_t seed) {
  return ops::random_normal(shape, sample_numbers(shape[0]), seed, 0, RandomPurpose::kTest,
                            at::kCPU);
}

at::Tensor floats(const Record& record) {
  return tensor_of(record).to(at::kFloat);
}

/// Gradient of the mean loss with respect to the prediction.
at::Tensor gradient(const Objective& objective, const at::Tensor& prediction,
                    const NoisedBatch& batch, const at::Tensor& x0) {
  const at::Tensor leaf = prediction.detach().clone().requires_grad_();
  loss(objective, leaf, batch, x0).mean.backward();
  return leaf.grad();
}

TEST(IddpmTest, HybridLossEqualsThePapersFormulas) {
  const Records records("loss.txt");
  const at::Tensor x0 = floats(records.at("x0"));
  const at::Tensor t = floats(records.at("t"));
  const at::Tensor prediction = floats(records.at("prediction"));
  const NoisedBatch batch{floats(records.at("x_t")), t, floats(records.at("noise")),
                          floats(records.at("weights"))};
  const Iddpm objective;
  const Loss result = loss(objective, prediction, batch, x0);
  const at::Tensor mse = tensor_of(records.at("mse"));
  const at::Tensor vb = tensor_of(records.at("vb"));
  EXPECT_EQ(result.mean.scalar_type(), at::kFloat);
  EXPECT_LT(((result.mse - mse) / mse).abs().max().item<double>(), 1e-6);
  // At t = 0 the likelihood of a level is a small difference of two distribution functions.
  EXPECT_LT(((result.vb - vb) / vb).abs().max().item<double>(), 5e-6);
  EXPECT_LT(max_difference(result.per_sample, mse + vb), 1e-5);
  EXPECT_NEAR(result.mean.item<double>(), records.values("mean")[0], 1e-6);
  EXPECT_LT(relative_difference(gradient(objective, prediction, batch, x0),
                                tensor_of(records.at("gradient"))),
            5e-6);
  // The tanh in the decoder stands for the distribution function.
  const at::Tensor exact = tensor_of(records.at("exact_decoder_bits"));
  EXPECT_LT(relative_difference(result.vb.narrow(0, 0, 2), exact), 2e-3);
}

TEST(IddpmTest, HybridLossEqualsTheTrainingReference) {
  // Of tools/reference, whose README describes the file.
  const auto file =
      io::SafetensorsFile::open(source_path("tests/diffusion/data/hybrid_loss.safetensors"));
  const auto tensor = [&](const char* name) {
    const io::SafetensorsTensor* found = file.find(name);
    EXPECT_NE(found, nullptr) << name;
    EXPECT_EQ(found->dtype, DType::kF32) << name;
    std::vector<float> values(found->data.size() / sizeof(float));
    std::memcpy(values.data(), found->data.data(), found->data.size());
    return at::tensor(values, at::kFloat).view(found->shape);
  };
  const at::Tensor t = tensor("t");
  const at::Tensor x0 = tensor("x0");
  const NoisedBatch batch{{}, t, tensor("noise"), at::ones_like(t)};
  const Iddpm objective;
  const Loss result = loss(objective, tensor("output"), batch, x0);
  EXPECT_LT(relative_difference(result.mse, tensor("mse")), 1e-6);
  EXPECT_LT(((result.vb - tensor("vb")) / tensor("vb")).abs().max().item<double>(), 1e-5);
  EXPECT_LT(relative_difference(result.per_sample, tensor("loss")), 2e-6);
  EXPECT_LT(relative_difference(gradient(objective, tensor("output"), batch, x0),
                                tensor("grad_output") / static_cast<double>(t.size(0))),
            1e-5);
}

TEST(IddpmTest, BoundIsTheClosedFormDivergence) {
  // eps exact: the means agree. v = -1 gives the posterior itself, KL 0; v = 1 the variance beta:
  // KL of two centred Gaussians.
  const Iddpm objective;
  const DiscreteSchedule& s = objective.schedule();
  const at::Tensor t = at::tensor({1.0F, 20.0F, 999.0F});
  const at::Tensor x0 = normals({3, 1, 2, 2}, 1);
  const at::Tensor noise = normals({3, 1, 2, 2}, 2);
  const NoisedBatch batch{{}, t, noise, at::ones_like(t)};
  const Loss least = loss(objective, at::cat({noise, at::full_like(noise, -1.0)}, 1), batch, x0);
  EXPECT_EQ(least.vb.abs().max().item<double>(), 0.0);
  EXPECT_EQ(least.mse.abs().max().item<double>(), 0.0);
  const Loss most = loss(objective, at::cat({noise, at::ones_like(noise)}, 1), batch, x0);
  for (int64_t b = 0; b < 3; ++b) {
    const auto index = static_cast<size_t>(t[b].item<float>());
    const double log_ratio = s.log_betas[index] - s.posterior_log_variance_clipped[index];
    const double nats = 0.5 * (log_ratio - 1.0 + std::exp(-log_ratio));
    EXPECT_NEAR(most.vb[b].item<double>(), nats / std::log(2.0), 1e-6 * nats + 1e-13) << index;
  }
}

TEST(IddpmTest, BoundIsScaledByTheNumberOfTimesteps) {
  // 0.001 L_vlb, L_vlb = T L_t (Nichol and Dhariwal 2021, section 3.1).
  const Iddpm objective(250);
  const DiscreteSchedule& s = objective.schedule();
  const at::Tensor t = at::tensor({100.0F});
  const at::Tensor noise = normals({1, 1, 2, 2}, 2);
  const Loss result = loss(objective, at::cat({noise, at::ones_like(noise)}, 1),
                           {{}, t, noise, at::ones_like(t)}, normals({1, 1, 2, 2}, 1));
  const double log_ratio = s.log_betas[100] - s.posterior_log_variance_clipped[100];
  const double bits = 0.5 * (log_ratio - 1.0 + std::exp(-log_ratio)) / std::log(2.0);
  EXPECT_NEAR(result.vb.item<double>(), 0.25 * bits, 1e-5 * bits);
}

TEST(IddpmTest, BoundDoesNotReachTheMean) {
  // In double: the gradient in the eps channels is that of the MSE alone, in the variance channels
  // what finite differences say.
  const Iddpm objective;
  const at::Tensor t = at::tensor({0.0, 1.0, 300.0, 999.0}, at::kDouble);
  const at::Tensor x0 = normals({4, 1, 2, 2}, 1).clamp(-1.0, 1.0).to(at::kDouble);
  const at::Tensor noise = normals({4, 1, 2, 2}, 2).to(at::kDouble);
  const at::Tensor eps = noise + 0.3 * normals({4, 1, 2, 2}, 3).to(at::kDouble);
  const at::Tensor prediction = at::cat({eps, 0.5 * normals({4, 1, 2, 2}, 4).to(at::kDouble)}, 1);
  const NoisedBatch batch{{}, t, noise, at::ones_like(t)};
  const at::Tensor grad = gradient(objective, prediction, batch, x0);
  const at::Tensor of_mse = 2.0 * (eps - noise) / static_cast<double>(noise.numel());
  EXPECT_LT(max_difference(grad.narrow(1, 0, 1), of_mse), 1e-16);

  constexpr double kStep = 1e-5;
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t i = 0; i < 4; ++i) {
      const auto shifted = [&](double by) {
        const at::Tensor moved = prediction.clone();
        moved[b][1].flatten()[i] += by;
        return loss(objective, moved, batch, x0).mean.item<double>();
      };
      const double difference = (shifted(kStep) - shifted(-kStep)) / (2.0 * kStep);
      const double got = grad[b][1].flatten()[i].item<double>();
      EXPECT_NEAR(got, difference, 1e-6 * std::abs(difference) + 1e-10) << b << ", " << i;
    }
  }
  EXPECT_GT(grad.narrow(1, 1, 1).abs().max().item<double>(), 1e-3);
}

TEST(IddpmTest, WithoutLearnedVarianceTheLossIsTheError) {
  const Iddpm objective(1000, /*learned_variance=*/false);
  const at::Tensor t = at::tensor({0.0F, 999.0F});
  const at::Tensor noise = normals({2, 3, 2, 2}, 1);
  const at::Tensor weights = at::tensor({3.0F, 0.5F});
  const Loss result = loss(objective, noise + 0.5, {{}, t, noise, weights}, at::zeros_like(noise));
  EXPECT_FALSE(result.vb.defined());
  EXPECT_LT(max_difference(result.per_sample, at::full({2}, 0.25)), 1e-6);
  EXPECT_NEAR(result.mean.item<double>(), 0.25 * 1.75, 1e-6);
}

TEST(IddpmTest, NoisesAsTheForwardProcess) {
  const Iddpm objective;
  const at::Tensor x0 = normals({3, 2, 4, 4}, 1);
  const at::Tensor t = at::tensor({0.0F, 400.0F, 999.0F});
  const NoiseKey key{.seed = 7, .step = 3, .sample_index = at::tensor({5, 1, 9}, at::kLong)};
  const NoisedBatch batch = noise_at(objective, x0, {t, {}}, key);
  for (int64_t b = 0; b < 3; ++b) {
    const double alpha_bar =
        objective.schedule().alphas_cumprod[static_cast<size_t>(t[b].item<float>())];
    const at::Tensor expected = std::sqrt(alpha_bar) * x0[b].to(at::kDouble) +
                                std::sqrt(1.0 - alpha_bar) * batch.noise[b].to(at::kDouble);
    EXPECT_LT(max_difference(batch.x_t[b], expected), 1e-6);
  }
  EXPECT_EQ(max_difference(batch.weights, at::ones({3})), 0.0);
}

TEST(IddpmTest, TimestepsAreUniform) {
  constexpr int64_t kDraws = 200000;
  const Timesteps drawn =
      draw_timesteps(Iddpm(), {.seed = 1, .sample_index = sample_numbers(kDraws)}, at::kCPU);
  EXPECT_EQ(drawn.t.scalar_type(), at::kFloat);
  EXPECT_EQ(max_difference(drawn.t, drawn.t.floor()), 0.0);
  EXPECT_EQ(drawn.t.min().item<float>(), 0.0F);
  EXPECT_EQ(drawn.t.max().item<float>(), 999.0F);
  const at::Tensor counts = drawn.t.to(at::kLong).bincount({}, 1000).to(at::kDouble);
  // Chi-square of 999 degrees of freedom: mean 999, deviation 45.
  const double mean = kDraws / 1000.0;
  EXPECT_NEAR(((counts - mean).square() / mean).sum().item<double>(), 999.0, 5.0 * 45.0);
}

TEST(ObjectiveTest, NoiseDependsOnTheSampleAndNotOnTheBatch) {
  for (const Objective& objective : {Objective(Iddpm()), Objective(RectifiedFlow{})}) {
    const at::Tensor x0 = normals({4, 3, 2, 2}, 1);
    const auto key = [](const at::Tensor& index, uint32_t step) {
      return NoiseKey{.seed = 11, .step = step, .sample_index = index};
    };
    const NoisedBatch whole = noise(objective, x0, key(sample_numbers(4, 100), 6));
    for (int64_t b = 0; b < 4; ++b) {
      const NoisedBatch one =
          noise(objective, x0.narrow(0, b, 1), key(sample_numbers(1, 100 + b), 6));
      EXPECT_EQ(max_difference(one.x_t, whole.x_t.narrow(0, b, 1)), 0.0);
      EXPECT_EQ(max_difference(one.t, whole.t.narrow(0, b, 1)), 0.0);
    }
    const NoisedBatch later = noise(objective, x0, key(sample_numbers(4, 100), 7));
    EXPECT_GT(max_difference(later.noise, whole.noise), 0.1);
    EXPECT_GT(max_difference(later.t, whole.t), 0.01 * time_range(objective).second);
  }
}

TEST(ObjectiveTest, RefusesPredictionsOfOtherShapes) {
  const at::Tensor t = at::tensor({0.0F});
  const at::Tensor noise = normals({1, 2, 2, 2}, 1);
  const NoisedBatch batch{{}, t, noise, at::ones_like(t)};
  const at::Tensor twice = at::cat({noise, noise}, 1);
  EXPECT_THROW(static_cast<void>(loss(Iddpm(), noise, batch, noise)), Error);
  EXPECT_THROW(static_cast<void>(loss(Iddpm(1000, false), twice, batch, noise)), Error);
  EXPECT_THROW(static_cast<void>(loss(RectifiedFlow{}, noise.narrow(1, 0, 1), batch, noise)),
               Error);
  EXPECT_THROW(static_cast<void>(loss(Iddpm(), twice.narrow(3, 0, 1), batch, noise)), Error);
  const NoiseKey key{.sample_index = sample_numbers(2)};
  EXPECT_THROW(static_cast<void>(kinora::diffusion::noise(Iddpm(), noise, key)), Error);
}

// Masked loss: what a place weighs, in both halves of the loss and in the gradient.
TEST(ObjectiveTest, PlacesCountAsTheyAreWeighted) {
  const at::Tensor x0 = normals({2, 3, 4, 4}, 1);
  at::Tensor weights = at::ones({2, 1, 4, 4});
  weights.narrow(3, 2, 2).fill_(0.25);
  for (const Objective& objective :
       {Objective(Iddpm()), Objective(Iddpm(1000, false)), Objective(RectifiedFlow{})}) {
    const bool learned = objective.index() == 0 && std::get<Iddpm>(objective).learned_variance();
    NoisedBatch batch = noise(objective, x0, {.seed = 1, .sample_index = sample_numbers(2)});
    const at::Tensor prediction = normals({2, learned ? 6 : 3, 4, 4}, 2);
    const Loss whole = loss(objective, prediction, batch, x0);
    const at::Tensor of_whole = gradient(objective, prediction, batch, x0);
    batch.place_weights = at::ones({2, 1, 4, 4});
    const Loss ones = loss(objective, prediction, batch, x0);
    EXPECT_LT(max_difference(ones.per_sample, whole.per_sample), 1e-5);
    batch.place_weights = weights;
    const at::Tensor weighted = gradient(objective, prediction, batch, x0);
    EXPECT_LT(max_difference(weighted, weights * of_whole), 1e-6);
    // Halves that count wholly and by a quarter.
    at::Tensor left = at::zeros({2, 1, 4, 4});
    left.narrow(3, 0, 2).fill_(1.0);
    batch.place_weights = left;
    const at::Tensor of_left = loss(objective, prediction, batch, x0).per_sample;
    batch.place_weights = weights;
    EXPECT_LT(max_difference(loss(objective, prediction, batch, x0).per_sample,
                             of_left + 0.25 * (whole.per_sample - of_left)),
              1e-4);
  }
}

TEST(ObjectiveTest, KnowsTheEndOfTime) {
  EXPECT_EQ(time_range(Iddpm(500)), std::pair(0.0, 500.0));
  EXPECT_EQ(time_range(RectifiedFlow{}), std::pair(0.0, 1.0));
}

TEST(RectifiedFlowTest, TheVelocityHasNoLoss) {
  const RectifiedFlow objective;
  const at::Tensor x0 = normals({3, 2, 2, 2}, 1);
  const NoisedBatch batch = noise(objective, x0, {.seed = 1, .sample_index = sample_numbers(3)});
  // dx_t/dt of the straight line, by its ends: x_t - t v = x_0.
  const at::Tensor velocity = batch.noise - x0;
  EXPECT_LT(max_difference(batch.x_t - batch.t.view({3, 1, 1, 1}) * velocity, x0), 1e-6);
  EXPECT_EQ(loss(objective, velocity, batch, x0).per_sample.abs().max().item<double>(), 0.0);
  // Channels of a learned variance are ignored.
  const at::Tensor both = at::cat({velocity + 2.0, normals({3, 2, 2, 2}, 2)}, 1);
  const Loss result = loss(objective, both, batch, x0);
  EXPECT_LT(max_difference(result.per_sample, at::full({3}, 4.0)), 1e-5);
  EXPECT_FALSE(result.vb.defined());
  const at::Tensor grad = gradient(objective, both, batch, x0);
  EXPECT_EQ(grad.narrow(1, 2, 2).abs().max().item<double>(), 0.0);
  EXPECT_LT(max_difference(grad.narrow(1, 0, 2), at::full({3, 2, 2, 2}, 2.0 * 2.0 / 24.0)), 1e-6);
}

/// 100,000 drawn times, in double.
at::Tensor drawn_times(const RectifiedFlow& objective) {
  const NoiseKey key{.seed = 4, .sample_index = sample_numbers(100000)};
  return draw_timesteps(objective, key, at::kCPU).t.to(at::kDouble);
}

TEST(RectifiedFlowTest, UniformTimesHaveTheMomentsOfTheUniform) {
  const at::Tensor t = drawn_times({});
  EXPECT_NEAR(t.mean().item<double>(), 0.5, 0.005);
  EXPECT_NEAR(t.std().item<double>(), std::sqrt(1.0 / 12.0), 0.005);
}

TEST(RectifiedFlowTest, LogitsOfTimesAreNormal) {
  RectifiedFlow objective{.times = RectifiedFlow::Times::kLogitNormal,
                          .logit_mean = -0.4,
                          .logit_std = 0.8,
                          .schedule = {}};
  at::Tensor logit = drawn_times(objective).logit();
  EXPECT_NEAR(logit.mean().item<double>(), -0.4, 0.01);
  EXPECT_NEAR(logit.std().item<double>(), 0.8, 0.01);
  // A shift by s adds log s to the logit: t' / (1 - t') = s t / (1 - t).
  objective.schedule.shift = 3.0;
  logit = drawn_times(objective).logit();
  EXPECT_NEAR(logit.mean().item<double>(), -0.4 + std::log(3.0), 0.01);
  EXPECT_NEAR(logit.std().item<double>(), 0.8, 0.01);
}

TEST(RectifiedFlowTest, SomeLevelsAreDrawnAsIfOthersWereThrownAway) {
  const at::Tensor parts = at::tensor({0.1, 0.3, 0.5, 0.7, 0.9}, at::kDouble);
  for (const RectifiedFlow::Times times :
       {RectifiedFlow::Times::kUniform, RectifiedFlow::Times::kLogitNormal}) {
    for (const auto& [first, last] :
         {std::pair(0.875, 1.0), std::pair(0.0, 0.875), std::pair(0.6, 0.7)}) {
      RectifiedFlow objective{.times = times, .logit_mean = 0.3, .schedule = {.shift = 3.0}};
      const at::Tensor all = drawn_times(objective);
      const at::Tensor kept = all.masked_select(all.ge(first).logical_and(all.lt(last)));
      objective.levels = {first, last};
      const at::Tensor drawn = drawn_times(objective);
      EXPECT_GE(drawn.min().item<double>(), static_cast<float>(first));
      EXPECT_LE(drawn.max().item<double>(), last);
      // Of the order of 3 / sqrt(samples) of the range.
      EXPECT_LT(max_difference(drawn.quantile(parts), kept.quantile(parts)), 0.02 * (last - first))
          << first << " to " << last;
    }
  }
}

TEST(RectifiedFlowTest, LevelsThatAreNotDrawnAreRefused) {
  const RectifiedFlow objective{.times = RectifiedFlow::Times::kLogitNormal,
                                .logit_mean = -20.0,
                                .schedule = {},
                                .levels = {0.9, 1.0}};
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { return drawn_times(objective); })
                .find("next to none of the times"),
            std::string::npos);
}

TEST(RectifiedFlowTest, RefusesUnusableSettings) {
  const NoiseKey key{.sample_index = sample_numbers(2)};
  RectifiedFlow objective;
  objective.schedule.shift = 0.0;
  EXPECT_THROW(static_cast<void>(draw_timesteps(objective, key, at::kCPU)), Error);
  objective = {};
  objective.logit_std = -1.0;
  EXPECT_THROW(static_cast<void>(draw_timesteps(objective, key, at::kCPU)), Error);
}

}  // namespace objective_test
}  // namespace kinora::diffusion
