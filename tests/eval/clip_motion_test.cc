#include "kinora/eval/clip_motion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kinora/core/error.h"
#include "tests/error_of.h"
#include "tests/eval/network_files.h"
#include "tests/places.h"

namespace kinora::eval {
namespace clip_motion_test {

using testing::HasSubstr;

std::filesystem::path file(const char* name) {
  return source_path(std::string("tests/eval/data/") + name);
}

/// uint8 [3, T, 20, 20]: each frame of one level.
at::Tensor clip_of(const std::vector<int64_t>& levels) {
  std::vector<at::Tensor> frames;
  for (const int64_t level : levels) {
    frames.push_back(at::full({3, 20, 20}, level, at::kByte));
  }
  return at::stack(frames, 1);
}

double judged(const FeatureNetwork& network, const at::Tensor& clip) {
  return network.forward(network.prepare(clip).unsqueeze(0)).features.item<double>();
}

TEST(FrameConsistencyTest, IsTheMeanOfTheLikenessToTheFirstAndToTheOneBefore) {
  // Unit vectors at 0, 60 and 180 degrees, of any length: to the first 1/2 and 0 (-1 is cut off),
  // to the one before 1/2 and 0.
  const double height = std::sqrt(3.0);
  const at::Tensor one = at::tensor({2.0, 0.0, 1.0, height, -5.0, 0.0});
  EXPECT_NEAR(frame_consistency(one.unsqueeze(0), 3), 0.25, 1e-12);
  const at::Tensor still = at::tensor({3.0, 4.0, 3.0, 4.0, 6.0, 8.0});
  EXPECT_NEAR(frame_consistency(still.unsqueeze(0), 3), 1.0, 1e-12);
  EXPECT_NEAR(frame_consistency(at::stack({one, still}), 3), 0.625, 1e-12);
  EXPECT_EQ(frame_consistency(at::zeros({1, 6}), 3), 0.0);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return frame_consistency(at::zeros({1, 6}), 1);
                       }),
              HasSubstr("two or more"));
}

TEST(FrameByFrameTest, GivesWhatTheNetworkSaysOfEachFrame) {
  const auto images = open_network({.script = file("script.pt")}, at::kCPU);
  const auto frames = frame_by_frame(open_network({.script = file("script.pt")}, at::kCPU));
  EXPECT_EQ(frames->name(), images->name());
  std::vector<at::Tensor> clips;
  for (const char* name : {"clip.0", "clip.1"}) {
    clips.push_back(formula_pixels(name, {3, 4, 6, 5}));
  }
  const at::Tensor features =
      frames->forward(at::stack({frames->prepare(clips[0]), frames->prepare(clips[1])})).features;
  EXPECT_EQ(features.sizes(), at::IntArrayRef({2, 24}));
  const at::Tensor third = images->prepare(clips[1].select(1, 2)).unsqueeze(0);
  EXPECT_TRUE(features[1].slice(0, 12, 18).equal(images->forward(third).features[0]));
}

// An interpolator that makes the mean of both frames.
TEST(MotionSmoothnessTest, IsTheDistanceFromTheFrameBetween) {
  const auto network = open_interpolator(file("middle.pt"), at::kCPU);
  EXPECT_THAT(network->name(), testing::StartsWith("torchscript "));
  EXPECT_DOUBLE_EQ(judged(*network, clip_of({10, 20, 30, 40, 50})), 1.0);
  // 51 off in frame 1, 0 in frame 3; frame 5 has no frame behind it.
  EXPECT_NEAR(judged(*network, clip_of({0, 101, 100, 100, 100, 255})), 1.0 - 25.5 / 255.0, 1e-6);
  // What is made is cut to whole levels: 10.5 becomes 10.
  EXPECT_NEAR(judged(*network, clip_of({10, 12, 11})), 1.0 - 2.0 / 255.0, 1e-6);
}

// A flow that is the change of red and green.
TEST(DynamicDegreeTest, CountsFramesWhoseFastestPixelsGoFar) {
  const auto network = open_flow(file("flow.pt"), at::kCPU);
  // At 20 pixels a side the threshold is 0.46875 pixels, and of 400 pixels 20 are the fastest.
  const at::Tensor still = clip_of({7, 7, 7, 7, 7, 7, 7, 7});
  EXPECT_EQ(judged(*network, still), 0.0);
  // One pixel goes 8 of its own, which is 0.4 in the mean of twenty; then 10, which is 0.5. In
  // eight frames two steps must be as fast.
  const auto raised = [&](const std::vector<int64_t>& frames, int64_t pixels) {
    at::Tensor clip = still.clone();
    for (const int64_t t : frames) {
      clip[0][t][3][4] += pixels;
    }
    return clip;
  };
  EXPECT_EQ(judged(*network, raised({1, 3, 5}, 8)), 0.0);
  EXPECT_EQ(judged(*network, raised({3}, 10)), 1.0);  // there and back
  EXPECT_EQ(judged(*network, raised({4, 5, 6, 7}, 10)), 0.0);
}

TEST(DynamicDegreeTest, TheThresholdGrowsWithTheShorterSide) {
  const auto network = open_flow(file("flow.pt"), at::kCPU);
  const auto moving = [&](int64_t height, int64_t width, int64_t pixels) {
    at::Tensor clip = at::zeros({3, 3, height, width}, at::kByte);
    clip[1].select(0, 1).fill_(pixels);
    return judged(*network, clip);
  };
  EXPECT_EQ(moving(256, 300, 6), 0.0);
  EXPECT_EQ(moving(256, 300, 7), 1.0);
  EXPECT_EQ(moving(300, 128, 3), 0.0);
  EXPECT_EQ(moving(300, 128, 4), 1.0);
}

TEST(ClipMotionTest, WhatDoesNotFitIsNamed) {
  const auto flow = open_flow(file("flow.pt"), at::kCPU);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return flow->prepare(clip_of({1, 2}));
                       }),
              HasSubstr("3 frames or more, got 2"));
  const auto wrong = open_interpolator(file("flow.pt"), at::kCPU);  // returns two channels
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return wrong->forward(wrong->prepare(clip_of({1, 2, 3})).unsqueeze(0));
                       }),
              HasSubstr("must return a frame of [1, 3, 20, 20], got [1, 2, 20, 20]"));
  const auto other = open_flow(file("middle.pt"), at::kCPU);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return other->forward(other->prepare(clip_of({1, 2, 3})).unsqueeze(0));
                       }),
              HasSubstr("must return [1, 2, h, w]"));
  EXPECT_THAT(
      error_of(ErrorKind::kIo, [&] { return open_flow(file("metrics.safetensors"), at::kCPU); }),
      HasSubstr("must be a TorchScript module"));
}

}  // namespace clip_motion_test
}  // namespace kinora::eval
