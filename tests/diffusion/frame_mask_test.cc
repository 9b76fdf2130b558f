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
  return draw_frame_masks(ratios, kFrames, 1, step, at::arange(count, at::kLong));
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

TEST(FrameMaskTest, HangOnTheSampleAndTheStepAlone) {
  const FrameMaskRatios ratios{.random = 0.5, .quarter_random = 0.5};
  EXPECT_TRUE(at::equal(masks_of(ratios, 40).narrow(0, 10, 5),
                        draw_frame_masks(ratios, kFrames, 1, 3, at::arange(10, 15, at::kLong))));
  EXPECT_FALSE(at::equal(masks_of(ratios), masks_of(ratios, 400, 4)));
  EXPECT_TRUE(draw_frame_masks(ratios, 1, 1, 3, at::arange(9, at::kLong)).all().item<bool>());
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
