#include "kinora/eval/shape_judge.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/data/normalise.h"
#include "kinora/data/shapes.h"

namespace kinora::eval {
namespace shape_judge_test {

struct Pictures {
  at::Tensor images;  // uint8 [B, 3, H, W]
  at::Tensor labels;  // int64 [B]
};

Pictures generate(int64_t count, int64_t height, int64_t width) {
  Pictures pictures{at::empty({count, 3, height, width}, at::kByte), at::empty({count}, at::kLong)};
  const data::ShapeSource source(17, count, height, width);
  data::Sample sample;
  for (int64_t i = 0; i < count; ++i) {
    source.read(i, sample);
    const at::Tensor planes = pictures.images[i];
    for (int64_t channel = 0; channel < 3; ++channel) {
      auto* out = planes[channel].mutable_data_ptr<uint8_t>();
      for (int64_t pixel = 0; pixel < height * width; ++pixel) {
        out[pixel] = sample.image.pixels[static_cast<size_t>(pixel * 3 + channel)];
      }
    }
    pictures.labels.mutable_data_ptr<int64_t>()[i] = sample.label;
  }
  return pictures;
}

double share(const ShapeScore& score) {
  return static_cast<double>(score.num_right) / static_cast<double>(score.num_images);
}

// Adds normal noise of standard deviation `deviation` in units of the range 0 to 1.
void add_noise(at::Tensor& images, float deviation) {
  auto* values = images.mutable_data_ptr<float>();  // range of 2
  for (int64_t i = 0; i < images.numel(); i += 4) {
    float normal[4];
    philox_normal(philox({5, 0, 0, RandomPurpose::kTest}, static_cast<uint32_t>(i / 4)), normal);
    for (int64_t j = 0; j < 4; ++j) {
      values[i + j] += 2.0F * deviation * normal[j];
    }
  }
}

// The binomial kernel (1 2 1) / 4 along rows and columns: a standard deviation of 0.7 pixels.
at::Tensor blur(const at::Tensor& images) {
  at::Tensor result = images.clone();
  for (const int64_t dim : {2, 3}) {
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

class ShapeJudgeSizeTest : public testing::TestWithParam<std::array<int64_t, 2>> {};

TEST_P(ShapeJudgeSizeTest, IsRightOnGeneratedPictures) {
  const auto [height, width] = GetParam();
  const Pictures pictures = generate(height * width > 10000 ? 96 : 640, height, width);
  EXPECT_GE(share(judge_shapes(pictures.images, pictures.labels)), 0.99);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ShapeJudgeSizeTest,
    testing::Values(std::array<int64_t, 2>{24, 24}, std::array<int64_t, 2>{32, 32},
                    std::array<int64_t, 2>{32, 48}, std::array<int64_t, 2>{65, 65},
                    std::array<int64_t, 2>{256, 144}),
    [](const auto& info) {
      return std::to_string(info.param[0]) + "x" + std::to_string(info.param[1]);
    });

TEST(ShapeJudgeTest, BearsNoiseAndBlurOfSampledPictures) {
  const Pictures pictures = generate(640, 32, 32);
  at::Tensor noisy = data::to_float(pictures.images, at::kCPU);
  add_noise(noisy, 0.05F);
  EXPECT_GE(share(judge_shapes(noisy, pictures.labels)), 0.99);

  at::Tensor blurred = blur(data::to_float(pictures.images, at::kCPU));
  EXPECT_GE(share(judge_shapes(blurred, pictures.labels)), 0.99);
  add_noise(blurred, 0.05F);
  EXPECT_GE(share(judge_shapes(blurred, pictures.labels)), 0.99);
}

TEST(ShapeJudgeTest, IsNotRightOnShuffledLabels) {
  const Pictures pictures = generate(640, 32, 32);
  const at::Tensor shuffled = pictures.labels.clone();
  auto* labels = shuffled.mutable_data_ptr<int64_t>();
  for (uint32_t i = 640; i > 1; --i) {
    std::swap(labels[i - 1], labels[random_index({6, 0, 0, RandomPurpose::kTest}, i, i)]);
  }
  EXPECT_LE(share(judge_shapes(pictures.images, shuffled)), 0.20);
}

TEST(ShapeJudgeTest, FindsNothingInNoise) {
  const Pictures pictures = generate(400, 32, 32);
  for (const float deviation : {0.1F, 0.3F, 1.0F}) {
    at::Tensor noise = data::to_float(pictures.images, at::kCPU).zero_();
    add_noise(noise, deviation);
    EXPECT_LE(share(judge_shapes(noise, pictures.labels)), 0.01) << deviation;
    EXPECT_LE(share(judge_shapes(blur(blur(noise)), pictures.labels)), 0.01) << deviation;
  }
}

TEST(ShapeJudgeTest, FindsNothingWhereAPictureShowsNoneOrTwoOrAPart) {
  at::Tensor picture = generate(2, 32, 32).images[0].clone();
  ASSERT_TRUE(judge_shape(picture).has_value());

  at::Tensor plain = picture.clone();
  plain.fill_(30);
  EXPECT_FALSE(judge_shape(plain).has_value());

  const data::ShapeScene left{.centre_x = 0.25F, .radius = 0.18F};
  const data::ShapeScene right{.centre_x = 0.75F, .radius = 0.18F};
  io::Image a;
  io::Image b;
  data::render(left, 32, 32, a);
  data::render(right, 32, 32, b);
  at::Tensor two = at::empty({3, 32, 32}, at::kByte);
  at::Tensor half = at::empty({3, 32, 32}, at::kByte);
  for (int64_t i = 0; i < int64_t{32} * 32 * 3; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t planar = (i % 3) * 32 * 32 + i / 3;
    two.mutable_data_ptr<uint8_t>()[planar] = std::max(a.pixels[at], b.pixels[at]);
    const bool upper = i / 3 / 32 < 16;
    half.mutable_data_ptr<uint8_t>()[planar] = upper ? a.pixels[at] : a.pixels[2];
  }
  EXPECT_FALSE(judge_shape(two).has_value());
  EXPECT_FALSE(judge_shape(half).has_value());
}

TEST(ShapeJudgeTest, FindsNothingInGreyOrOtherColours) {
  const at::Tensor picture = generate(2, 32, 32).images[0];
  const at::Tensor grey =
      picture.to(at::kFloat).mean(0, /*keepdim=*/true).expand({3, 32, 32}).to(at::kByte);
  EXPECT_FALSE(judge_shape(grey).has_value());
  const at::Tensor magenta = picture.clone();
  magenta[2].copy_(picture[0]);  // blue as strong as red
  EXPECT_FALSE(judge_shape(magenta).has_value());
}

TEST(ShapeJudgeTest, RefusesWrongShapes) {
  const Pictures pictures = generate(2, 32, 32);
  EXPECT_THROW((void)judge_shape(pictures.images), Error);
  EXPECT_THROW((void)judge_shape(pictures.labels), Error);
  EXPECT_THROW((void)judge_shapes(pictures.images, pictures.labels.narrow(0, 0, 1)), Error);
  EXPECT_THROW((void)judge_shapes(pictures.images[0], pictures.labels), Error);
}

}  // namespace shape_judge_test
}  // namespace kinora::eval
