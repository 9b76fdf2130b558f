#include "kinora/pipelines/images.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace images_test {

TEST(ToImagesTest, RoundsAndClips) {
  const at::Tensor pixels =
      at::tensor({-1.0F, 1.0F, 0.0F, -3.0F, 7.0F, 0.5F}, at::kFloat).view({1, 3, 1, 2});
  const std::vector<io::Image> images = to_images(pixels);
  ASSERT_EQ(images.size(), 1U);
  EXPECT_EQ(images[0].height, 1);
  EXPECT_EQ(images[0].width, 2);
  // Channel by channel in, pixel by pixel out; 127.5 rounds to even.
  EXPECT_EQ(images[0].pixels, (std::vector<uint8_t>{0, 128, 255, 255, 0, 191}));
}

TEST(ToImagesTest, GreyBecomesRgbAndLatentsAreRefused) {
  const std::vector<io::Image> images = to_images(at::full({2, 1, 2, 2}, 1.0));
  ASSERT_EQ(images.size(), 2U);
  EXPECT_EQ(images[1].pixels, std::vector<uint8_t>(12, 255));
  EXPECT_THROW((void)to_images(at::full({1, 4, 2, 2}, 0.0)), Error);
}

}  // namespace images_test
}  // namespace kinora::pipelines
