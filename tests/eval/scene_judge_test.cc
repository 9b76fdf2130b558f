#include "kinora/eval/scene_judge.h"

#include <array>
#include <vector>

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/normalise.h"
#include "kinora/data/scenes.h"

namespace kinora::eval {
namespace scene_judge_test {

struct Pictures {
  at::Tensor images;  // uint8 [B, 3, H, W]
  std::vector<data::SceneContent> contents;
};

// Those of the fixed held-out scenes.
Pictures held_out(int64_t count, int64_t side) {
  Pictures pictures{at::empty({count, 3, side, side}, at::kByte), {}};
  io::Image image;
  for (int64_t i = 0; i < count; ++i) {
    const data::Scene scene = data::held_out_scene(i);
    data::render(scene, side, image);
    auto* out = pictures.images.mutable_data_ptr<uint8_t>() + i * 3 * side * side;
    for (int64_t pixel = 0; pixel < side * side; ++pixel) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        out[channel * side * side + pixel] = image.pixels[static_cast<size_t>(pixel * 3 + channel)];
      }
    }
    pictures.contents.push_back(scene.content);
  }
  return pictures;
}

// Adds normal noise of standard deviation `deviation` in units of the range 0 to 1.
at::Tensor noisy(const at::Tensor& images, float deviation) {
  at::Tensor result = images.clone();
  auto* values = result.mutable_data_ptr<float>();  // range of 2
  for (int64_t i = 0; i < result.numel(); i += 4) {
    float normal[4];
    philox_normal(philox({5, 0, 0, RandomPurpose::kTest}, static_cast<uint32_t>(i / 4)), normal);
    for (int64_t j = 0; j < 4; ++j) {
      values[i + j] += 2.0F * deviation * normal[j];
    }
  }
  return result;
}

// (1 6 1) / 8 along rows and columns: a standard deviation of half a pixel.
at::Tensor blurred(const at::Tensor& images) {
  at::Tensor result = images.clone();
  for (const int64_t dim : {2, 3}) {
    const int64_t size = result.size(dim);
    const at::Tensor before = result.clone();
    result.narrow(dim, 1, size - 2)
        .mul_(6.0)
        .add_(before.narrow(dim, 0, size - 2))
        .add_(before.narrow(dim, 2, size - 2))
        .mul_(0.125);
  }
  return result;
}

void expect_shares(const SceneScore& score, double least) {
  for (size_t i = 0; i < score.num_right.size(); ++i) {
    const double share =
        static_cast<double>(score.num_right[i]) / static_cast<double>(score.num_images[i]);
    EXPECT_GE(share, least) << i + 1 << " objects: " << score.num_right[i] << " of "
                            << score.num_images[i];
  }
}

TEST(SceneJudgeTest, IsRightOnTruePictures) {
  expect_shares(judge_scenes(held_out(1000, 32).images, held_out(1000, 32).contents), 0.995);
  const Pictures large = held_out(150, 64);
  expect_shares(judge_scenes(large.images, large.contents), 1.0);
}

TEST(SceneJudgeTest, BearsNoiseAndBlurOfSampledPictures) {
  const Pictures pictures = held_out(600, 32);
  const at::Tensor images = data::to_float(pictures.images, at::kCPU);
  expect_shares(judge_scenes(noisy(images, 0.05F), pictures.contents), 0.98);
  expect_shares(judge_scenes(blurred(images), pictures.contents), 0.98);
  expect_shares(judge_scenes(noisy(blurred(images), 0.03F), pictures.contents), 0.97);
}

TEST(SceneJudgeTest, OtherCaptionsAreRightByChanceAlone) {
  const Pictures pictures = held_out(600, 32);
  const SceneScore score = judge_scenes(pictures.images, pictures.contents);
  EXPECT_NEAR(score.chance[0], 0.25, 0.05);  // one of four kinds is held out
  EXPECT_LT(score.chance[1], 0.005);
  EXPECT_LT(score.chance[2], 0.001);
}

TEST(SceneJudgeTest, OneWrongAttributeOrRelationIsWrong) {
  const Pictures pictures = held_out(60, 32);
  for (int64_t i = 0; i < 60; ++i) {
    const auto found = judge_scene(pictures.images[i]);
    ASSERT_TRUE(found.has_value());
    const data::SceneContent& content = pictures.contents[static_cast<size_t>(i)];
    ASSERT_TRUE(shows(*found, content)) << i;
    for (size_t object = 0; object < content.objects.size(); ++object) {
      data::SceneContent other = content;
      other.objects[object].colour = content.objects[object].colour == data::Colour::kRed
                                         ? data::Colour::kBlue
                                         : data::Colour::kRed;
      EXPECT_FALSE(shows(*found, other));
      other = content;
      other.objects[object].size = content.objects[object].size == data::ObjectSize::kSmall
                                       ? data::ObjectSize::kLarge
                                       : data::ObjectSize::kSmall;
      EXPECT_FALSE(shows(*found, other));
      other = content;
      other.objects.erase(other.objects.begin() + static_cast<std::ptrdiff_t>(object));
      EXPECT_FALSE(shows(*found, other));
    }
    for (size_t pair = 0; pair < content.relations.size(); ++pair) {
      data::SceneContent other = content;
      other.relations[pair] = data::opposite(content.relations[pair]);
      EXPECT_FALSE(shows(*found, other));
    }
  }
}

TEST(SceneJudgeTest, FindsNothingInNoiseOrAPlainPicture) {
  const at::Tensor images = data::to_float(held_out(50, 32).images, at::kCPU);
  for (const float deviation : {0.1F, 0.3F, 1.0F}) {
    const at::Tensor noise = noisy(images.clone().zero_(), deviation);
    for (int64_t i = 0; i < noise.size(0); ++i) {
      EXPECT_FALSE(judge_scene(noise[i]).has_value()) << deviation;
    }
  }
  EXPECT_FALSE(judge_scene(images[0].clone().fill_(-0.8)).has_value());
}

TEST(SceneJudgeTest, CountsObjectsInTheirBoxes) {
  constexpr int64_t kCount = 300;
  const Pictures pictures = held_out(kCount, 32);
  std::vector<data::Layout> asked;
  std::vector<data::Layout> moved;
  std::vector<data::Layout> others;
  for (int64_t i = 0; i < kCount; ++i) {
    asked.push_back(data::layout_of(data::held_out_scene(i)));
    moved.push_back(asked.back());
    others.push_back(asked.back());
    for (data::LayoutObject& object : moved.back()) {
      const double half = 0.5 * (object.box.right - object.box.left);
      const double shift = object.box.left >= half ? -half : half;
      object.box.left += shift;
      object.box.right += shift;
    }
    std::string& phrase = others.back().front().phrase;  // of another size
    phrase = (phrase.starts_with("small") ? "large" : "small") + phrase.substr(phrase.find(' '));
  }
  const auto shares = [&](const at::Tensor& images, const std::vector<data::Layout>& layouts) {
    const LayoutScore score = judge_layouts(images, layouts);
    int64_t in_boxes = 0;
    int64_t right = 0;
    for (size_t i = 0; i < score.num_images.size(); ++i) {
      EXPECT_EQ(score.num_images[i], kCount / 3);
      EXPECT_EQ(score.num_objects[i], static_cast<int64_t>(i + 1) * kCount / 3);
      in_boxes += score.num_in_boxes[i];
      right += score.num_right[i];
    }
    return std::pair(static_cast<double>(in_boxes) / (2.0 * kCount),
                     static_cast<double>(right) / kCount);
  };
  const auto [in_boxes, right] = shares(pictures.images, asked);
  EXPECT_GE(in_boxes, 0.99);
  EXPECT_GE(right, 0.99);
  const auto blurry = shares(blurred(data::to_float(pictures.images, at::kCPU)), asked);
  EXPECT_GE(blurry.first, 0.98);
  const auto beside = shares(pictures.images, moved);  // by half of a side: a third overlaps
  EXPECT_LE(beside.first, 0.02);
  EXPECT_EQ(beside.second, 0.0);
  const auto wrong = shares(pictures.images, others);
  EXPECT_NEAR(wrong.first, 0.5, 0.05);  // the first of two objects on average
  EXPECT_LE(wrong.second, 0.01);
  others[0][0].phrase = "a cat";
  EXPECT_THROW((void)judge_layouts(pictures.images, others), Error);
}

TEST(SceneJudgeTest, RefusesWrongShapes) {
  const Pictures pictures = held_out(3, 32);
  EXPECT_THROW((void)judge_scene(pictures.images), Error);
  EXPECT_THROW((void)judge_scene(pictures.images[0].narrow(2, 0, 30)), Error);
  EXPECT_THROW((void)judge_scenes(pictures.images, std::span(pictures.contents).first(2)), Error);
}

}  // namespace scene_judge_test
}  // namespace kinora::eval
