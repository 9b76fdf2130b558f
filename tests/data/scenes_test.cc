#include "kinora/data/scenes.h"

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/scene_captions.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace scenes_test {

TEST(ScenesTest, SampleDependsOnSeedAndIndexOnly) {
  const SceneSource source(4, 1000, 32, 32);
  Sample first;
  Sample again;
  source.read(3, again);  // other contents before
  source.read(100, first);
  source.read(100, again);
  EXPECT_EQ(first.image.pixels, again.image.pixels);
  EXPECT_EQ(first.caption, again.caption);
  EXPECT_EQ(first.caption, scene_caption(4, 100));
  SceneSource(5, 1000, 32, 32).read(100, again);
  EXPECT_NE(first.image.pixels, again.image.pixels);
}

TEST(ScenesTest, ObjectsLieInsideAndApartAndAsTheContentSays) {
  for (int64_t i = 0; i < 6000; ++i) {
    const Scene shown = scene(1, i);
    ASSERT_EQ(std::ssize(shown.content.objects), 1 + i % 3);
    const std::vector<Placement>& places = shown.places;
    for (size_t object = 0; object < places.size(); ++object) {
      const Placement& place = places[object];
      EXPECT_GE(std::min(place.x, place.y), place.radius + 0.03F);
      EXPECT_LE(std::max(place.x, place.y), 1.0F - place.radius - 0.03F);
      EXPECT_EQ(place.radius >= kLargeFrom,
                shown.content.objects[object].size == ObjectSize::kLarge);
      for (size_t other = 0; other < object; ++other) {
        EXPECT_GE(std::hypot(place.x - places[other].x, place.y - places[other].y),
                  place.radius + places[other].radius + 0.05F);
        EXPECT_NE(shown.content.objects[object], shown.content.objects[other]);
      }
    }
    for (size_t object = 1; object < places.size(); ++object) {
      const float right = places[object].x - places[0].x;
      const float down = places[object].y - places[0].y;
      const std::map<Relation, float> along = {{Relation::kLeftOf, -right},
                                               {Relation::kRightOf, right},
                                               {Relation::kAbove, -down},
                                               {Relation::kBelow, down}};
      EXPECT_GE(along.at(shown.content.relations[object - 1]), kMinSeparation);
    }
  }
}

TEST(ScenesTest, CaptionsSayWhatIsThere) {
  std::set<std::string> captions;
  for (int64_t i = 0; i < 3000; ++i) {
    const std::string text = scene_caption(2, i);
    const std::optional<SceneContent> said = content_of(text);
    ASSERT_TRUE(said.has_value()) << text;
    EXPECT_TRUE(same_content(*said, scene(2, i).content)) << text;
    captions.insert(text);
  }
  EXPECT_GE(captions.size(), 2700U);  // few say the same in the same words
}

TEST(ScenesTest, CaptionsAreReadAsPeopleReadThem) {
  const ObjectKind circle{ObjectSize::kSmall, Colour::kRed, Shape::kCircle};
  const ObjectKind square{ObjectSize::kLarge, Colour::kBlue, Shape::kSquare};
  const ObjectKind cross{ObjectSize::kSmall, Colour::kGreen, Shape::kCross};
  const SceneContent two{{square, circle}, {Relation::kLeftOf}};
  for (const char* text : {"a small red circle to the left of a large blue square",
                           "A large blue square, with a little red disc on its left.",
                           "one big box in azure is right of a crimson tiny circle",
                           "left of a large blue square is a small red circle"}) {
    const std::optional<SceneContent> said = content_of(text);
    if (std::string_view(text).find("is right") != std::string_view::npos) {
      EXPECT_FALSE(said.has_value()) << text;  // no wording of ours
      continue;
    }
    ASSERT_TRUE(said.has_value()) << text;
    EXPECT_TRUE(same_content(*said, two)) << text;
  }
  const SceneContent three{{square, circle, cross}, {Relation::kLeftOf, Relation::kBelow}};
  for (const char* text :
       {"a large blue square right of a small red circle and above a small green cross",
        "a large blue square with a small green cross below it and a small red circle on its left",
        "a small red circle left of a large blue square which is over a tiny emerald plus"}) {
    const std::optional<SceneContent> said = content_of(text);
    ASSERT_TRUE(said.has_value()) << text;
    EXPECT_TRUE(same_content(*said, three)) << text;
  }
  const SceneContent other{{square, circle, cross}, {Relation::kBelow, Relation::kLeftOf}};
  EXPECT_FALSE(same_content(other, three));
  EXPECT_FALSE(same_content({{circle, square, cross}, three.relations}, three));
  for (const char* text : {"", "a cat", "a red circle", "a small red red circle",
                           "a small red circle left of a small red circle",
                           "a small red circle and a large blue square", "its", "above"}) {
    EXPECT_FALSE(content_of(text).has_value()) << text;
  }
}

TEST(ScenesTest, TrainingNeverShowsWhatIsHeldOut) {
  for (int64_t i = 0; i < 3000; ++i) {
    EXPECT_FALSE(is_held_out(scene(3, i).content));
  }
  std::array<int64_t, kMostObjects> times{};
  for (int64_t i = 0; i < kNumHeldOutScenes; ++i) {
    const Scene held_out = held_out_scene(i);
    EXPECT_TRUE(is_held_out(held_out.content));
    ++times[held_out.content.objects.size() - 1];
    const std::optional<SceneContent> said = content_of(held_out_caption(i));
    ASSERT_TRUE(said.has_value());
    EXPECT_TRUE(is_held_out(*said)) << held_out_caption(i);  // whatever the order of words
  }
  EXPECT_THAT(times, testing::ElementsAre(334, 333, 333));
}

TEST(ScenesTest, EachPairOfAttributesIsInAKindThatTrainingShows) {
  int64_t num_held_out = 0;
  std::set<std::array<int, 2>> pairs;
  for (int size = 0; size < kNumSizes; ++size) {
    for (int colour = 0; colour < kNumColours; ++colour) {
      for (int shape = 0; shape < kNumShapes; ++shape) {
        const ObjectKind kind{static_cast<ObjectSize>(size), static_cast<Colour>(colour),
                              static_cast<Shape>(shape)};
        if (is_held_out(SceneContent{{kind}, {}})) {
          ++num_held_out;
          continue;
        }
        pairs.insert({size, 10 + colour});
        pairs.insert({size, 20 + shape});
        pairs.insert({10 + colour, 20 + shape});
      }
    }
  }
  EXPECT_EQ(num_held_out, 4);
  EXPECT_EQ(pairs.size(), 8U + 8U + 16U);
}

TEST(ScenesTest, RefusesSizesThatShowTooLittle) {
  EXPECT_THROW(SceneSource(0, 10, 16, 16), Error);
  EXPECT_THROW(SceneSource(0, 10, 32, 48), Error);
  EXPECT_THROW(SceneSource(0, 1, 32, 32), Error);
}

}  // namespace scenes_test
}  // namespace kinora::data
