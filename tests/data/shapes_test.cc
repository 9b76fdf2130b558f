#include "kinora/data/shapes.h"

#include <array>
#include <cmath>
#include <numbers>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace shapes_test {

using testing::HasSubstr;

TEST(ShapesTest, SampleDependsOnSeedAndIndexOnly) {
  const ShapeSource source(4, 1000, 32, 32);
  Sample first;
  Sample again;
  source.read(3, again);  // other contents before
  source.read(100, first);
  source.read(100, again);
  EXPECT_EQ(first.image.pixels, again.image.pixels);
  ShapeSource(4, 200, 32, 32).read(100, again);
  EXPECT_EQ(first.image.pixels, again.image.pixels);
  ShapeSource(5, 200, 32, 32).read(100, again);
  EXPECT_NE(first.image.pixels, again.image.pixels);
}

TEST(ShapesTest, ClassesAreBalancedAndNamed) {
  const ShapeSource source(0, 160, 16, 16);
  ASSERT_EQ(source.num_classes(), kNumShapeClasses);
  std::array<int64_t, kNumShapeClasses> times{};
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    ++times[static_cast<size_t>(sample.label)];
    EXPECT_THAT(caption(shape_scene(0, i)),
                HasSubstr(source.class_names()[static_cast<size_t>(sample.label)]));
  }
  EXPECT_THAT(times, testing::Each(10));
  EXPECT_EQ(source.class_names().front(), "red circle");
  EXPECT_EQ(source.class_names().back(), "yellow cross");
}

TEST(ShapesTest, CaptionsTellScenesApart) {
  std::set<std::string> captions;
  for (int64_t i = 0; i < 5000; ++i) {
    captions.insert(caption(shape_scene(1, i)));
  }
  EXPECT_EQ(captions.size(), 16U * 9U);
  EXPECT_TRUE(captions.contains("a red circle at the upper left"));
}

TEST(ShapesTest, PlacesAreWhereTheCaptionSays) {
  for (int64_t i = 0; i < 2000; ++i) {
    const ShapeScene scene = shape_scene(2, i);
    const std::string text = caption(scene);
    EXPECT_EQ(text.find("left") != std::string::npos, scene.centre_x < 0.4F) << text;
    EXPECT_EQ(text.find("right") != std::string::npos, scene.centre_x > 0.6F) << text;
    const bool up = text.find("upper") != std::string::npos || text.ends_with("at the top");
    const bool down = text.find("lower") != std::string::npos || text.ends_with("at the bottom");
    EXPECT_EQ(up, scene.centre_y < 0.4F) << text;
    EXPECT_EQ(down, scene.centre_y > 0.6F) << text;
  }
}

TEST(ShapesTest, ShapesLieWhollyInside) {
  for (const auto& [height, width] : {std::array<int64_t, 2>{32, 32}, {64, 32}, {48, 80}}) {
    io::Image image;
    for (int64_t i = 0; i < 2000; ++i) {
      const ShapeScene scene = shape_scene(3, i);
      render(scene, height, width, image);
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

TEST(ShapesTest, DistancesAreTrueAtKnownPoints) {
  EXPECT_FLOAT_EQ(shape_distance(Shape::kCircle, 3.0F, 4.0F), 4.0F);
  EXPECT_FLOAT_EQ(shape_distance(Shape::kSquare, 0.88F, 0.0F), 0.0F);
  EXPECT_FLOAT_EQ(shape_distance(Shape::kSquare, 0.88F + 3.0F, 0.88F + 4.0F), 5.0F);
  EXPECT_NEAR(shape_distance(Shape::kTriangle, 0.0F, -1.24F), 0.0F, 1e-6);  // the upper vertex
  EXPECT_FLOAT_EQ(shape_distance(Shape::kTriangle, 0.0F, 0.62F), 0.0F);     // the base
  EXPECT_FLOAT_EQ(shape_distance(Shape::kCross, 1.05F, 0.0F), 0.0F);
  EXPECT_NEAR(shape_distance(Shape::kCross, 0.36F, 0.36F), 0.0F, 1e-6);  // an inner corner
}

// The painted area against the plane geometry.
TEST(ShapesTest, AreasAreRight) {
  const std::array<double, kNumShapes> areas = {std::numbers::pi, 4 * 0.88 * 0.88,
                                                3 * std::sqrt(3.0) * 0.62 * 0.62,
                                                2 * (2 * 1.05 * 2 * 0.36) - 4 * 0.36 * 0.36};
  for (int64_t i = 0; i < kNumShapes; ++i) {
    const ShapeScene scene{.shape = static_cast<Shape>(i),
                           .colour = Colour::kRed,
                           .centre_x = 0.5F,
                           .centre_y = 0.5F,
                           .radius = 0.25F,
                           .ground = 0.0F};
    io::Image image;
    render(scene, 256, 256, image);
    double red = 0.0;
    for (size_t at = 0; at < image.pixels.size(); at += 3) {
      red += image.pixels[at];
    }
    const double area = red / (255.0 * rgb_of(Colour::kRed)[0]) / (64.0 * 64.0);
    EXPECT_NEAR(area / areas[static_cast<size_t>(i)], 1.0, 0.005) << i;
  }
}

TEST(ShapesTest, RefusesSizesAndCounts) {
  EXPECT_THAT(error_of([] { ShapeSource(0, 10, 8, 32); }), HasSubstr("got 8 x 32"));
  EXPECT_THAT(error_of([] { ShapeSource(0, 10, 32, 1 << 20); }), HasSubstr("16384"));
  EXPECT_THAT(error_of([] { ShapeSource(0, 1, 32, 32); }), HasSubstr("at least 2 images, got 1"));
}

}  // namespace shapes_test
}  // namespace kinora::data
