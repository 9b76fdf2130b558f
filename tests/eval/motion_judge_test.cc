#include "kinora/eval/motion_judge.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/loader.h"
#include "kinora/data/normalise.h"
#include "kinora/data/strips.h"
#include "kinora/eval/shape_judge.h"
#include "tests/places.h"

namespace kinora::eval {
namespace motion_judge_test {

using data::Motion;

data::Batch generate(int64_t count, int64_t num_frames, int64_t height, int64_t width) {
  const data::MovingShapeSource source(17, count, num_frames, 8.0F, height, width);
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), 0);
  return data::load_samples(source, indices,
                            {.height = height, .width = width, .frames = num_frames});
}

double share(const MotionScore& score) {
  return static_cast<double>(score.num_right) / static_cast<double>(score.num_clips);
}

// Adds normal noise of standard deviation `deviation` in units of the range 0 to 1.
void add_noise(const at::Tensor& clips, float deviation) {
  auto* values = clips.mutable_data_ptr<float>();  // range of 2
  for (int64_t i = 0; i < clips.numel(); i += 4) {
    float normal[4];
    philox_normal(philox({5, 0, 0, RandomPurpose::kTest}, static_cast<uint32_t>(i / 4)), normal);
    for (int64_t j = 0; j < 4; ++j) {
      values[i + j] += 2.0F * deviation * normal[j];
    }
  }
}

// The binomial kernel (1 2 1) / 4 along rows and columns: a standard deviation of 0.7 pixels.
at::Tensor blur(const at::Tensor& clips) {
  at::Tensor result = clips.clone();
  for (const int64_t dim : {3, 4}) {
    const int64_t size = result.size(dim);
    const at::Tensor before = result.clone();
    result.narrow(dim, 1, size - 2)
        .mul_(2.0)
        .add_(before.narrow(dim, 0, size - 2))
        .add_(before.narrow(dim, 2, size - 2))
        .mul_(0.25);
  }
  return result;
}

// The frames of `clip` [3, T, H, W] in another order.
at::Tensor reordered(const at::Tensor& clip, const std::vector<int64_t>& order) {
  at::Tensor result = at::empty_like(clip);
  for (int64_t t = 0; t < clip.size(1); ++t) {
    result.select(1, t).copy_(clip.select(1, order[static_cast<size_t>(t)]));
  }
  return result;
}

struct Size {
  int64_t frames;
  int64_t height;
  int64_t width;
};

class MotionJudgeSizeTest : public testing::TestWithParam<Size> {};

TEST_P(MotionJudgeSizeTest, IsRightOnGeneratedClips) {
  const auto [frames, height, width] = GetParam();
  const data::Batch batch = generate(height * width > 2000 ? 48 : 160, frames, height, width);
  EXPECT_EQ(share(judge_moving_shapes(batch.images, batch.labels)), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MotionJudgeSizeTest,
                         testing::Values(Size{4, 32, 32}, Size{8, 32, 32}, Size{16, 32, 32},
                                         Size{16, 64, 64}, Size{5, 48, 32}, Size{4, 65, 130}),
                         [](const auto& info) {
                           return "T" + std::to_string(info.param.frames) + "_" +
                                  std::to_string(info.param.height) + "x" +
                                  std::to_string(info.param.width);
                         });

TEST(MotionJudgeTest, BearsNoiseAndBlurOfSampledClips) {
  const data::Batch batch = generate(96, 8, 32, 32);
  const at::Tensor blurred = blur(data::to_float(batch.images, at::kCPU));
  EXPECT_GE(share(judge_moving_shapes(blurred, batch.labels)), 0.98);
  const at::Tensor noisy = data::to_float(batch.images, at::kCPU);
  add_noise(noisy, 0.05F);
  EXPECT_GE(share(judge_moving_shapes(noisy, batch.labels)), 0.98);
  add_noise(blurred, 0.05F);
  EXPECT_GE(share(judge_moving_shapes(blurred, batch.labels)), 0.98);
}

TEST(MotionJudgeTest, TellsMotionColourAndTravel) {
  const data::MovingShapeSource source(3, 200, 8, 8.0F, 32, 32);
  for (int64_t index = 0; index < 64; ++index) {
    const data::MovingScene scene = data::moving_scene(3, index);
    const at::Tensor clip =
        data::load_samples(source, {{index}}, {.height = 32, .width = 32, .frames = 8}).images[0];
    const auto motion = judge_motion(clip);
    ASSERT_TRUE(motion.has_value()) << index;
    EXPECT_EQ(motion->motion, scene.motion);
    EXPECT_NEAR(motion->travel, scene.travel, 1.0F / 32.0F);  // a pixel
    EXPECT_EQ(judge_moving_shape(clip)->colour, scene.middle.colour);
  }
}

TEST(MotionJudgeTest, BackwardsMovesTheOtherWay) {
  const data::Batch batch = generate(64, 8, 32, 32);
  const std::array<Motion, data::kNumMotions> opposite = {Motion::kRight, Motion::kLeft,
                                                          Motion::kDown, Motion::kUp};
  for (int64_t i = 0; i < 64; ++i) {
    const auto verdict = judge_motion(batch.images[i].flip(1));
    ASSERT_TRUE(verdict.has_value()) << i;
    EXPECT_EQ(verdict->motion, opposite[static_cast<size_t>(i % data::kNumMotions)]);
  }
}

TEST(MotionJudgeTest, IsNotRightOnOtherLabels) {
  const data::Batch batch = generate(64, 8, 32, 32);
  const at::Tensor next = batch.labels.add(1).remainder(data::kNumMovingClasses);
  EXPECT_EQ(judge_moving_shapes(batch.images, next).num_right, 0);
}

// The fixed held-out clips that measure a model.
struct Asked {
  at::Tensor clips;  // uint8 [B, 3, T, H, W]
  std::vector<data::MovingContent> contents;
};

template <typename SceneOf>
Asked held_out(int64_t count, int64_t frames, int64_t side, const SceneOf& scene_of) {
  Asked asked{at::empty({count, 3, frames, side, side}, at::kByte), {}};
  io::Image image;
  for (int64_t i = 0; i < count; ++i) {
    const data::MovingScene scene = scene_of(i);
    for (int64_t t = 0; t < frames; ++t) {
      const float time = static_cast<float>(t) / static_cast<float>(frames - 1);
      data::render(data::scene_at(scene, time), side, side, image);
      const at::Tensor frame =
          at::from_blob(image.pixels.data(), {side, side, 3}, at::kByte).permute({2, 0, 1});
      asked.clips[i].select(1, t).copy_(frame);
    }
    asked.contents.push_back(scene.content());
  }
  return asked;
}

// What is shown by references is judged as exactly, in each frame.
TEST(MotionJudgeTest, IdentityIsThatOfTheReference) {
  Asked asked =
      held_out(32, 8, 32, [](int64_t i) { return data::held_out_referenced_clip(i, 2).scene; });
  for (int64_t i = 0; i < 32; ++i) {
    for (const data::ShapeScene& scene : data::held_out_referenced_clip(i, 2).references) {
      io::Image image;
      data::render(scene, 32, 32, image);
      const auto verdict = judge_shape(
          at::from_blob(image.pixels.data(), {32, 32, 3}, at::kByte).permute({2, 0, 1}));
      ASSERT_TRUE(verdict.has_value());
      EXPECT_EQ(verdict->shape, asked.contents[static_cast<size_t>(i)].shape);
      EXPECT_EQ(verdict->colour, asked.contents[static_cast<size_t>(i)].colour);
    }
  }
  MovingScore score = judge_asked_clips(asked.clips, asked.contents);
  EXPECT_EQ(score.num_right, 32);
  EXPECT_EQ(score.num_identity, 32);
  EXPECT_EQ(score.num_identity_in_each_frame, 32);
  // Another shape in one frame of eight, and in all of them.
  asked.clips[0].select(1, 3).copy_(asked.clips[4].select(1, 3));
  asked.clips[1].copy_(asked.clips[5]);
  score = judge_asked_clips(asked.clips, asked.contents);
  EXPECT_EQ(score.num_identity, 31);
  EXPECT_EQ(score.num_identity_in_each_frame, 30);
}

TEST(MotionJudgeTest, HeldOutClipsAreRightByTheirCaptionsAlone) {
  // Of 16 x 16 pixels some are too coarse to be sure.
  for (const auto& [frames, side, least] : {std::array<int64_t, 3>{8, 16, 148}, {16, 32, 160}}) {
    const Asked asked = held_out(160, frames, side, data::held_out_clip);
    const MovingScore score = judge_asked_clips(asked.clips, asked.contents);
    EXPECT_EQ(score.num_clips, 160);
    EXPECT_GE(score.num_right, least) << side;
    EXPECT_GE(score.num_shape, least) << side;
    EXPECT_GE(score.num_colour, least) << side;
    EXPECT_GE(score.num_motion, least) << side;
    // Of 159 others 9 ask for the same.
    EXPECT_NEAR(score.chance, 9.0 / 159.0, 0.005);

    std::vector<data::MovingContent> wrong = asked.contents;
    for (size_t i = 0; i < wrong.size(); ++i) {  // one attribute each
      const auto next = [](auto value) {
        return static_cast<decltype(value)>((static_cast<int>(value) + 1) % 4);
      };
      if (i % 3 == 0) {
        wrong[i].shape = next(wrong[i].shape);
      } else if (i % 3 == 1) {
        wrong[i].colour = next(wrong[i].colour);
      } else {
        wrong[i].motion = next(wrong[i].motion);
      }
    }
    const MovingScore none = judge_asked_clips(asked.clips, wrong);
    EXPECT_EQ(none.num_right, 0);
    EXPECT_LE(none.num_shape, 160 - 54);
    EXPECT_LE(none.num_colour, 160 - 53);
    EXPECT_LE(none.num_motion, 160 - 53);
  }
}

TEST(MotionJudgeTest, ClipsThatStandStillHaveTheirShapeRight) {
  const Asked asked = held_out(16, 8, 32, data::held_out_clip);
  const at::Tensor still = asked.clips.narrow(2, 4, 1).expand_as(asked.clips).contiguous();
  const MovingScore score = judge_asked_clips(still, asked.contents);
  EXPECT_EQ(score.num_right, 0);
  EXPECT_EQ(score.num_motion, 0);
  EXPECT_EQ(score.num_shape, 16);
  EXPECT_EQ(score.num_colour, 16);
}

TEST(MotionJudgeTest, FindsNothingInClipsThatStandStill) {
  const data::Batch batch = generate(32, 8, 32, 32);
  for (int64_t i = 0; i < 32; ++i) {
    const at::Tensor clip = reordered(batch.images[i], std::vector<int64_t>(8, 3));
    EXPECT_FALSE(judge_motion(clip).has_value()) << i;
  }
}

TEST(MotionJudgeTest, FindsNothingInShuffledFrames) {
  const data::Batch batch = generate(64, 16, 32, 32);
  for (int64_t i = 0; i < 64; ++i) {
    std::vector<int64_t> order(16);
    std::iota(order.begin(), order.end(), 0);
    const RandomStream stream{8, static_cast<uint64_t>(i)};
    for (uint32_t left = 16; left > 1; --left) {
      std::swap(order[left - 1], order[random_index(stream, left, left)]);
    }
    EXPECT_FALSE(judge_motion(reordered(batch.images[i], order)).has_value()) << i;
  }
}

TEST(MotionJudgeTest, FindsNothingInAJump) {
  const data::Batch batch = generate(32, 16, 32, 32);
  std::vector<int64_t> order(16, 0);
  std::fill(order.begin() + 8, order.end(), 15);
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_FALSE(judge_motion(reordered(batch.images[i], order)).has_value()) << i;
  }
}

TEST(MotionJudgeTest, FindsNothingInNoise) {
  const data::Batch batch = generate(64, 8, 32, 32);
  for (const float deviation : {0.03F, 0.1F, 0.3F, 1.0F}) {
    const at::Tensor noise = data::to_float(batch.images, at::kCPU).zero_();
    add_noise(noise, deviation);
    const at::Tensor smooth = blur(blur(noise));
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_FALSE(judge_motion(noise[i]).has_value()) << deviation;
      EXPECT_FALSE(judge_motion(smooth[i]).has_value()) << deviation;
    }
  }
}

TEST(MotionJudgeTest, FindsNothingWhereAFrameShowsNoneOrTwo) {
  const at::Tensor clip = generate(16, 8, 32, 32).images[0];
  ASSERT_TRUE(judge_motion(clip).has_value());
  at::Tensor gone = clip.clone();
  gone.select(1, 4).copy_(clip.select(2, 0).select(1, 0).view({3, 1, 32}).expand({3, 32, 32}));
  EXPECT_FALSE(judge_motion(gone).has_value());
  const at::Tensor two = at::empty_like(clip);  // of frames 0 and 7, which lie apart, in the middle
  two.copy_(clip);
  const at::Tensor both =
      clip.select(1, 0)
          .to(at::kInt)
          .add(clip.select(1, 7))
          .sub(clip.select(1, 0).select(1, 0).select(1, 0).to(at::kInt).view({3, 1, 1}));
  two.select(1, 4).copy_(both.clamp(0, 255));
  EXPECT_FALSE(judge_motion(two).has_value());
}

// Spoilt on purpose: a shape that turns into another one on its way.
TEST(MotionJudgeTest, FindsNoShapeWhereItChanges) {
  data::MovingScene scene = data::moving_scene(1, 0);
  const at::Tensor clip = at::empty({3, 8, 32, 32}, at::kByte);
  for (int64_t t = 0; t < 8; ++t) {
    scene.middle.shape = t < 4 ? data::Shape::kCircle : data::Shape::kCross;
    io::Image image;
    data::render(data::scene_at(scene, static_cast<float>(t) / 7.0F), 32, 32, image);
    for (int64_t channel = 0; channel < 3; ++channel) {
      auto* out = clip.select(1, t)[channel].mutable_data_ptr<uint8_t>();
      for (int64_t pixel = 0; pixel < int64_t{32} * 32; ++pixel) {
        out[pixel] = image.pixels[static_cast<size_t>(pixel * 3 + channel)];
      }
    }
  }
  EXPECT_FALSE(judge_moving_shape(clip).has_value());
}

// Every eighth clip of the set, 16 frames of its 32 at stride 2, so that they span the motion.
TEST(MotionJudgeTest, IsRightOnStoredClips) {
  namespace fs = std::filesystem;
  const char* folder = std::getenv("KINORA_DATA");
  const fs::path path = (folder != nullptr ? fs::path(folder) : source_path("../shared/data")) /
                        "moving_shapes/train.tar";
  if (!fs::exists(path)) {
    GTEST_SKIP() << "no real data: " << path.string() << " is absent (set KINORA_DATA)";
  }
  const data::StripSource source(std::make_unique<data::ClassTar>(std::vector<fs::path>{path}),
                                 8.0F);
  ASSERT_EQ(source.num_classes(), 2);
  std::vector<int64_t> indices;
  for (int64_t index = 0; index < source.size(); index += 8) {
    indices.push_back(index);
  }
  const data::Batch batch = data::load_samples(
      source, indices, {.height = 64, .width = 64, .frames = 16, .frame_stride = 2});
  EXPECT_EQ(batch.labels.size(0), 800);
  EXPECT_GE(share(judge_motions(batch.images, batch.labels, kStripMotions)), 0.99);
  const at::Tensor other = batch.labels.mul(-1).add(1);
  EXPECT_EQ(judge_motions(batch.images, other, kStripMotions).num_right, 0);
}

TEST(MotionJudgeTest, RefusesWrongShapes) {
  const data::Batch batch = generate(2, 3, 16, 16);
  EXPECT_NO_THROW((void)judge_motion(batch.images[0]));
  EXPECT_THROW((void)judge_motion(batch.images), Error);
  EXPECT_THROW((void)judge_motion(batch.images[0].narrow(1, 0, 2)), Error);
  EXPECT_THROW((void)judge_motion(batch.images[0].narrow(0, 0, 2)), Error);
  EXPECT_THROW((void)judge_moving_shapes(batch.images, batch.labels.narrow(0, 0, 1)), Error);
  EXPECT_THROW((void)judge_motions(batch.images, batch.labels.add(2), kStripMotions), Error);
  EXPECT_THROW(
      (void)judge_asked_clips(batch.images, held_out(3, 3, 16, data::held_out_clip).contents),
      Error);
}

}  // namespace motion_judge_test
}  // namespace kinora::eval
