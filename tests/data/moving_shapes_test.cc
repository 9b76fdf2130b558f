#include "kinora/data/moving_shapes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/moving_captions.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace moving_shapes_test {

using testing::HasSubstr;

TEST(MovingShapesTest, ClipDependsOnSeedAndIndexOnly) {
  const MovingShapeSource source(4, 1000, 5, 8.0F, 24, 32);
  Sample first;
  Sample again;
  source.read(3, again);  // other contents before
  source.read(100, first);
  source.read(100, again);
  EXPECT_EQ(first.image.pixels, again.image.pixels);
  EXPECT_EQ(first.num_frames, 5);
  EXPECT_EQ(first.fps, 8.0F);
  EXPECT_EQ(first.image.height, 24);
  EXPECT_EQ(first.image.width, 5 * 32);
  MovingShapeSource(4, 200, 5, 8.0F, 24, 32).read(100, again);
  EXPECT_EQ(first.image.pixels, again.image.pixels);
  MovingShapeSource(5, 200, 5, 8.0F, 24, 32).read(100, again);
  EXPECT_NE(first.image.pixels, again.image.pixels);
}

TEST(MovingShapesTest, ClassesAreBalancedAndSaidInCaptions) {
  const MovingShapeSource source(0, 160, 2, 8.0F, 16, 16);
  EXPECT_TRUE(source.is_video());
  ASSERT_EQ(source.num_classes(), kNumMovingClasses);
  std::array<int64_t, kNumMovingClasses> times{};
  std::set<std::string> captions;
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    ++times[static_cast<size_t>(sample.label)];
    const std::optional<MovingContent> said = moving_content_of(sample.caption);
    ASSERT_TRUE(said.has_value()) << sample.caption;
    EXPECT_EQ(*said, moving_scene(0, i).content()) << sample.caption;
    EXPECT_EQ(said->label(), sample.label);
    EXPECT_EQ(sample.caption, moving_caption(0, i));
    captions.insert(sample.caption);
  }
  EXPECT_THAT(times, testing::Each(10));
  EXPECT_EQ(source.class_names().front(), "circle moving to the left");
  EXPECT_EQ(source.class_names().back(), "cross moving down");
  EXPECT_GT(captions.size(), 150U);  // few say the same in the same words
}

TEST(MovingShapesTest, TrainingNeverShowsWhatIsHeldOut) {
  std::set<std::array<int, 3>> shown;
  const auto key = [](const MovingContent& content) {
    return std::array<int, 3>{static_cast<int>(content.shape), static_cast<int>(content.colour),
                              static_cast<int>(content.motion)};
  };
  for (int64_t i = 0; i < 3000; ++i) {
    const MovingContent content = moving_scene(3, i).content();
    EXPECT_FALSE(is_held_out(content));
    shown.insert(key(content));
  }
  EXPECT_EQ(shown.size(), 48U);
  std::set<std::array<int, 3>> asked;
  for (int64_t i = 0; i < kNumHeldOutClips; ++i) {
    const MovingContent content = held_out_clip(i).content();
    EXPECT_TRUE(is_held_out(content));
    EXPECT_EQ(content.label(), i % kNumMovingClasses);
    EXPECT_EQ(moving_content_of(held_out_clip_caption(i)), content);
    asked.insert(key(content));
  }
  EXPECT_EQ(asked.size(), 16U);
  // Each two attributes are shown together.
  std::set<std::array<int, 2>> pairs;
  for (const auto& [shape, colour, motion] : shown) {
    pairs.insert({shape, 10 + colour});
    pairs.insert({shape, 20 + motion});
    pairs.insert({10 + colour, 20 + motion});
  }
  EXPECT_EQ(pairs.size(), 48U);
}

// Captions leave open what moves, and one colour of each shape is held out.
TEST(MovingShapesTest, ReferencesAloneTellWhatMoves) {
  const MovingShapeSource source(3, 400, 2, 8.0F, 16, 24, 2);
  EXPECT_EQ(source.beside().references, 2);
  std::set<std::pair<Shape, Colour>> shown;
  std::array<int64_t, 3> times{};
  float most_tint = 0.0F;
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    const ReferencedClip clip = referenced_clip(3, i, 2);
    const auto [shape, colour, motion] = clip.scene.content();
    EXPECT_TRUE(!is_held_out_reference(shape, colour) || clip.scene.middle.tint_share >= 0.3F);
    shown.insert({shape, colour});
    EXPECT_NE(clip.scene.middle.tint, colour);
    EXPECT_LE(clip.scene.middle.tint_share, 0.45F);
    most_tint = std::max(most_tint, clip.scene.middle.tint_share);
    EXPECT_EQ(sample.label, moving_label(shape, motion));
    EXPECT_EQ(sample.caption, clip.caption);
    // With a colour and a shape it says all.
    const auto said = moving_content_of("a " + std::string(name_of(colour)) + " " +
                                        std::string(name_of(shape)) + " " + clip.caption);
    EXPECT_FALSE(moving_content_of(clip.caption).has_value());
    if (clip.caption.find("it ") == std::string::npos) {
      EXPECT_EQ(said, clip.scene.content()) << clip.caption;
    }
    ++times[sample.references.size()];
    for (size_t number = 0; number < sample.references.size(); ++number) {
      EXPECT_EQ(clip.references[number].shape, shape);
      EXPECT_EQ(clip.references[number].colour, colour);
      EXPECT_EQ(clip.references[number].tint, clip.scene.middle.tint);
      EXPECT_EQ(clip.references[number].tint_share, clip.scene.middle.tint_share);
      EXPECT_GT(clip.references[number].ground, clip.scene.middle.ground + 0.04F);
      io::Image alone;
      render(clip.references[number], 16, 24, alone);
      EXPECT_EQ(sample.references[number].pixels, alone.pixels);
    }
  }
  EXPECT_EQ(shown.size(), 16U);
  EXPECT_GT(most_tint, 0.4F);
  EXPECT_EQ(times[0], 0);
  EXPECT_GT(times[1], 150);
  EXPECT_GT(times[2], 150);
  std::set<std::pair<Shape, Colour>> asked;
  for (int64_t i = 0; i < 64; ++i) {
    const auto [shape, colour, motion] = held_out_referenced_clip(i, 2).scene.content();
    EXPECT_TRUE(is_held_out_reference(shape, colour));
    EXPECT_EQ(held_out_referenced_clip(i, 2).scene.middle.tint_share, 0.0F);
    EXPECT_EQ(moving_label(shape, motion), i % kNumMovingClasses);
    asked.insert({shape, colour});
  }
  EXPECT_EQ(asked.size(), 4U);
}

TEST(MovingShapesTest, FramesAreTheScenesOneByOne) {
  const MovingShapeSource source(9, 32, 3, 8.0F, 20, 28);
  Sample sample;
  source.read(21, sample);
  for (int64_t frame = 0; frame < 3; ++frame) {
    io::Image alone;
    render(scene_at(moving_scene(9, 21), static_cast<float>(frame) / 2.0F), 20, 28, alone);
    constexpr int64_t kRow = int64_t{28} * 3;  // bytes
    for (int64_t row = 0; row < 20; ++row) {
      const uint8_t* in_strip = sample.image.pixels.data() + (row * 3 + frame) * kRow;
      const uint8_t* in_frame = alone.pixels.data() + row * kRow;
      ASSERT_TRUE(std::equal(in_frame, in_frame + kRow, in_strip)) << frame << " " << row;
    }
  }
}

TEST(MovingShapesTest, MovesAsItsCaptionSays) {
  for (int64_t i = 0; i < 500; ++i) {
    const MovingScene clip = moving_scene(2, i);
    const std::string text = moving_caption(2, i);
    const auto says = [&text](const char* word) { return text.find(word) != std::string::npos; };
    const float right = scene_at(clip, 1.0F).centre_x - scene_at(clip, 0.0F).centre_x;
    const float down = scene_at(clip, 1.0F).centre_y - scene_at(clip, 0.0F).centre_y;
    EXPECT_EQ(says("left"), right < -0.3F) << text;
    EXPECT_EQ(says("right"), right > 0.3F) << text;
    EXPECT_EQ(says("up"), down < -0.3F) << text;
    EXPECT_EQ(says("down"), down > 0.3F) << text;
    EXPECT_EQ(right == 0.0F, down != 0.0F) << text;
  }
}

TEST(MovingShapesTest, ShapesLieWhollyInsideInEveryFrame) {
  for (const auto& [height, width] : {std::array<int64_t, 2>{32, 32}, {64, 32}, {48, 80}}) {
    io::Image image;
    for (int64_t i = 0; i < 500; ++i) {
      const MovingScene clip = moving_scene(3, i);
      for (const float time : {0.0F, 1.0F}) {
        render(scene_at(clip, time), height, width, image);
        for (int64_t pixel = 0; pixel < height * width; ++pixel) {
          const int64_t row = pixel / width;
          const int64_t column = pixel % width;
          if (row == 0 || column == 0 || row == height - 1 || column == width - 1) {
            const uint8_t* rgb = &image.pixels[static_cast<size_t>(3 * pixel)];
            ASSERT_LT(std::max({rgb[0], rgb[1], rgb[2]}), 120)
                << i << " at " << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST(MovingShapesTest, RefusesSizesAndCounts) {
  EXPECT_THAT(error_of([] { MovingShapeSource(0, 10, 4, 8.0F, 8, 32); }), HasSubstr("got 8 x 32"));
  EXPECT_THAT(error_of([] { MovingShapeSource(0, 10, 1, 8.0F, 32, 32); }),
              HasSubstr("at least 2 frames, got 1"));
  EXPECT_THAT(error_of([] { MovingShapeSource(0, 1, 4, 8.0F, 32, 32); }), HasSubstr("got 1"));
}

}  // namespace moving_shapes_test
}  // namespace kinora::data
