#include "kinora/diffusion/shaped_noise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kinora/diffusion/objective.h"
#include "tests/diffusion/tensors.h"

namespace kinora::diffusion {
namespace shaped_noise_test {

constexpr uint64_t kSeed = 5;
constexpr uint32_t kStep = 9;

at::Tensor normals(at::IntArrayRef shape, RandomPurpose purpose) {
  return ops::random_normal(shape, sample_numbers(shape[0]), kSeed, kStep, purpose, at::kCPU);
}

at::Tensor shaped(const at::Tensor& white, const NoiseShape& shape) {
  return shaped_noise(white, shape, sample_numbers(white.size(0)), kSeed, kStep);
}

TEST(ShapedNoiseTest, AnOffsetIsOneNumberAChannel) {
  const at::Tensor white = normals({3, 4, 5, 6}, RandomPurpose::kNoise);
  const at::Tensor added = shaped(white, {.offset = 0.1}) - white;
  const at::Tensor want = 0.1 * normals({3, 4}, RandomPurpose::kNoiseOffset);
  EXPECT_LT(max_difference(added, want.view({3, 4, 1, 1}).expand_as(white)), 1e-6);
}

// Of 2 x 2 places there is one more level, of one place.
TEST(ShapedNoiseTest, APyramidOfTwoLevels) {
  const at::Tensor white = normals({3, 4, 2, 2}, RandomPurpose::kNoise);
  const at::Tensor coarse = normals({3, 4}, RandomPurpose::kPyramidNoise).view({3, 4, 1, 1});
  const at::Tensor want = (white + 0.5 * coarse) / std::sqrt(1.25);
  EXPECT_LT(max_difference(shaped(white, {.pyramid = 0.5}), want), 1e-6);
}

// Correlation of two places of the noise: what the levels of 2 x 2 and of one place put there.
TEST(ShapedNoiseTest, APyramidHasUnitVarianceAndIsAlikeNearby) {
  constexpr int64_t kSamples = 20000;
  constexpr double kDiscount = 0.8;
  const at::Tensor noise =
      shaped(normals({kSamples, 1, 4, 4}, RandomPurpose::kNoise), {.pyramid = kDiscount});
  EXPECT_NEAR(noise.square().mean().item<double>(), 1.0, 0.01);
  EXPECT_NEAR(noise.mean().item<double>(), 0.0, 0.01);
  // Four places are stretched of two by weights (1, 0), (3/4, 1/4), (1/4, 3/4), (0, 1).
  const double side = (1.0 + 0.625 + 0.625 + 1.0) / 4.0;
  const double first = kDiscount * kDiscount;
  const double second = first * first;
  const double total = 1.0 + first * side * side + second;
  const double corners =
      (noise.select(2, 0).select(2, 0) * noise.select(2, 3).select(2, 3)).mean().item<double>();
  EXPECT_NEAR(corners, second / total, 0.02);
  const double neighbours =
      (noise.select(2, 0).select(2, 0) * noise.select(2, 0).select(2, 1)).mean().item<double>();
  EXPECT_NEAR(neighbours, (first * 0.75 + second) / total, 0.02);
}

TEST(ShapedNoiseTest, ASamplesNoiseIsItsOwn) {
  const NoiseShape shape{.offset = 0.1, .pyramid = 0.3};
  const at::Tensor white = normals({4, 3, 2, 7, 5}, RandomPurpose::kNoise);  // clips, odd sides
  const at::Tensor together = shaped(white, shape);
  const at::Tensor alone =
      shaped_noise(white.narrow(0, 2, 1), shape, sample_numbers(4).narrow(0, 2, 1), kSeed, kStep);
  EXPECT_TRUE(at::equal(together.narrow(0, 2, 1), alone));
}

TEST(ShapedNoiseTest, TrainingLearnsItAndValidationDoesNot) {
  const NoiseShape shape{.offset = 0.2, .pyramid = 0.5};
  const Objective objective =
      Iddpm({.betas = linear_betas(100), .learned_variance = false, .noise = shape});
  const at::Tensor x0 = at::zeros({2, 3, 4, 4});
  const NoiseKey key{.seed = kSeed, .step = kStep, .sample_index = sample_numbers(2)};
  const at::Tensor white = normals({2, 3, 4, 4}, RandomPurpose::kNoise);
  const NoisedBatch trained = noise(objective, x0, key);
  EXPECT_TRUE(at::equal(trained.noise, shaped(white, shape)));
  const NoisedBatch held_out = noise_at(objective, x0, {.t = trained.t, .weights = {}}, key);
  EXPECT_TRUE(at::equal(held_out.noise, white));
  // The noise itself is the target.
  EXPECT_EQ(loss(objective, trained.noise, trained, x0).mean.item<double>(), 0.0);
}

}  // namespace shaped_noise_test
}  // namespace kinora::diffusion
