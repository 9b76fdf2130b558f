#include "kinora/diffusion/frame_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "kinora/diffusion/objective.h"

namespace kinora::diffusion {
namespace frame_mask_test {

constexpr int64_t kFrames = 16;

at::Tensor masks_of(const FrameMaskRatios& ratios, int64_t count = 400, int64_t step = 3) {
  return draw_frame_masks(ratios, kFrames,
                          {.seed = 1, .step = step, .sample_index = at::arange(count, at::kLong)});
}

/// Given frames of each clip.
at::Tensor num_given(const at::Tensor& masks) {
  return kFrames - masks.sum(1);
}

TEST(FrameMaskTest, ModesGiveWhatTheirNamesSay) {
  const at::Tensor head = masks_of({.image_head = 1.0});
  EXPECT_TRUE(at::equal(num_given(head), at::ones({400}, at::kLong)));
  EXPECT_FALSE(head.select(1, 0).any().item<bool>());
  const at::Tensor tail = masks_of({.quarter_tail = 1.0});
  EXPECT_EQ(num_given(tail).min().item<int64_t>(), 1);
  EXPECT_EQ(num_given(tail).max().item<int64_t>(), kFrames / 4);
  EXPECT_FALSE(tail.select(1, kFrames - 1).any().item<bool>());
  EXPECT_TRUE(tail.narrow(1, 0, kFrames - kFrames / 4).all().item<bool>());
  const at::Tensor both = masks_of({.image_head_tail = 1.0});
  EXPECT_FALSE(both.select(1, 0).any().item<bool>());
  EXPECT_FALSE(both.select(1, kFrames - 1).any().item<bool>());
  EXPECT_TRUE(both.narrow(1, 1, kFrames - 2).all().item<bool>());
  const at::Tensor every_other = masks_of({.interpolate = 1.0});
  EXPECT_TRUE((num_given(every_other) == kFrames / 2).all().item<bool>());
  const at::Tensor random = masks_of({.random = 1.0});
  EXPECT_TRUE(random.any(1).all().item<bool>()) << "a clip without a noised frame";
  EXPECT_GT(num_given(random).max().item<int64_t>(), kFrames / 2);
}

TEST(FrameMaskTest, RatiosAreShares) {
  const at::Tensor masks = masks_of({.image_head = 0.25, .image_tail = 0.25}, 4000);
  const auto share = [&](int64_t frame) {
    return 1.0 - masks.select(1, frame).to(at::kDouble).mean().item<double>();
  };
  EXPECT_NEAR(share(0), 0.25, 0.03);
  EXPECT_NEAR(share(kFrames - 1), 0.25, 0.03);
  EXPECT_EQ(share(5), 0.0);
}

/// Masks of clips of so many latent frames, each of which was 4 frames but the first.
at::Tensor weighted(const GivenWeights& weights, int64_t frames, int64_t count = 4000) {
  FrameMaskRatios ratios;
  ratios.weights = weights;
  return draw_frame_masks(ratios, frames,
                          {.seed = 1, .step = 3, .sample_index = at::arange(count, at::kLong)}, 4);
}

/// Share of the clips in which exactly frames [0, head) and the last `tail` are given.
double share_of(const at::Tensor& masks, int64_t head, int64_t tail) {
  at::Tensor expected = at::ones({masks.size(1)}, at::kBool);
  expected.narrow(0, 0, head).fill_(false);
  expected.narrow(0, masks.size(1) - tail, tail).fill_(false);
  return (masks == expected).all(1).to(at::kDouble).mean().item<double>();
}

// Open-Sora 2's condition_config: 33 frames are 9 latent ones, 65 are 17.
TEST(FrameMaskTest, WeightsAreThoseOfOpenSora2) {
  const at::Tensor stage1 = weighted({.t2v = 1, .i2v_head = 5, .i2v_loop = 1, .i2v_tail = 1}, 33);
  EXPECT_NEAR(share_of(stage1, 0, 0), 1.0 / 8, 0.02);
  EXPECT_NEAR(share_of(stage1, 1, 0), 5.0 / 8, 0.03);
  EXPECT_NEAR(share_of(stage1, 1, 1), 1.0 / 8, 0.02);
  EXPECT_NEAR(share_of(stage1, 0, 1), 1.0 / 8, 0.02);

  const GivenWeights all{
      .t2v = 2, .v2v_head = 1, .v2v_tail = 1, .v2v_head_easy = 3, .v2v_tail_easy = 1};
  const at::Tensor long_ones = weighted(all, 33);
  EXPECT_NEAR(share_of(long_ones, 0, 0), 2.0 / 8, 0.03);
  EXPECT_NEAR(share_of(long_ones, 9, 0), 1.0 / 8, 0.02);
  EXPECT_NEAR(share_of(long_ones, 0, 9), 1.0 / 8, 0.02);
  EXPECT_NEAR(share_of(long_ones, 17, 0), 3.0 / 8, 0.03);
  EXPECT_NEAR(share_of(long_ones, 0, 17), 1.0 / 8, 0.02);
  // Clips that are too short leave those weights to the others.
  const at::Tensor middle = weighted(all, 17);
  EXPECT_NEAR(share_of(middle, 0, 0), 2.0 / 4, 0.03);
  EXPECT_NEAR(share_of(middle, 9, 0), 1.0 / 4, 0.03);
  EXPECT_EQ(share_of(weighted(all, 9), 0, 0), 1.0);
  EXPECT_EQ(share_of(weighted({.i2v_loop = 1}, 2), 0, 0), 1.0);
  EXPECT_EQ(share_of(weighted({.i2v_head = 1}, 2), 1, 0), 1.0);
  EXPECT_FALSE(FrameMaskRatios({.weights = {.t2v = 1}}).any());
  EXPECT_TRUE(FrameMaskRatios({.weights = {.i2v_tail = 1}}).any());
}

TEST(FrameMaskTest, HangOnTheSampleAndTheStepAlone) {
  const FrameMaskRatios ratios{.random = 0.5, .quarter_random = 0.5};
  const auto of_samples = [&](int64_t frames, const at::Tensor& index) {
    return draw_frame_masks(ratios, frames, {.seed = 1, .step = 3, .sample_index = index});
  };
  EXPECT_TRUE(at::equal(masks_of(ratios, 40).narrow(0, 10, 5),
                        of_samples(kFrames, at::arange(10, 15, at::kLong))));
  EXPECT_FALSE(at::equal(masks_of(ratios), masks_of(ratios, 400, 4)));
  EXPECT_TRUE(of_samples(1, at::arange(9, at::kLong)).all().item<bool>());
}

TEST(FrameMaskTest, TheLossCountsNoisedFramesOnly) {
  for (const bool toward_data : {false, true}) {
    RectifiedFlow flow;
    flow.toward_data = toward_data;
    const Objective objective = flow;
    const at::Tensor x0 = at::rand({5, 2, kFrames, 3, 3});
    const NoiseKey key{.seed = 2, .step = 1, .sample_index = at::arange(5, at::kLong)};
    const at::Tensor mask = masks_of({.random = 1.0}, 5);
    const NoisedBatch batch = noise(objective, x0, key, nullptr, {.frame_mask = mask});
    const at::Tensor noised = mask.view({5, 1, kFrames, 1, 1});
    EXPECT_TRUE(at::equal(at::where(noised, at::zeros_like(x0), batch.x_t),
                          at::where(noised, at::zeros_like(x0), x0)));
    const at::Tensor target = toward_data ? x0 - batch.noise : batch.noise - x0;
    // Right where frames are noised, wrong elsewhere; then off by 1 where they are noised.
    const at::Tensor right = at::where(noised, target, target + 7.0);
    EXPECT_NEAR(loss(objective, right, batch, x0).mean.item<double>(), 0.0, 1e-10);
    EXPECT_NEAR(loss(objective, right + 1.0, batch, x0).mean.item<double>(), 1.0, 1e-5);
  }
}

}  // namespace frame_mask_test
}  // namespace kinora::diffusion
