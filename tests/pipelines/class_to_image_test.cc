#include "kinora/pipelines/class_to_image.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace class_to_image_test {

constexpr int64_t kNullClass = 10;

/// A flow of constant velocity, the label: the image is the noise minus the label.
class LabelFlow : public diffusion::Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                     const diffusion::Conditions& conditions,
                     const diffusion::Pass& /*pass*/) override {
    largest_batch = std::max(largest_batch, x_t.size(0));
    return x_t * 0.0 + conditions.labels.view({-1, 1, 1, 1});
  }
  int64_t largest_batch = 0;
};

at::Tensor draw(const ClassToImageRequest& request, double guidance = 1.0,
                LabelFlow* flow = nullptr) {
  LabelFlow own;
  const SamplingConfig config{.steps = 4, .guidance = guidance};
  return sample_classes(flow != nullptr ? *flow : own,
                        make_sampler(config, diffusion::RectifiedFlow()), config, request,
                        {3, 2, 5}, kNullClass, at::kCPU);
}

TEST(SampleClassesTest, ClassesTakeTurnsAndBatchesChangeNothing) {
  const at::Tensor noise = draw({.classes = {0}, .count = 7, .batch = 7, .seed = 4});
  EXPECT_EQ(noise.sizes(), (at::IntArrayRef{7, 3, 2, 5}));
  for (const int64_t batch : {1, 2, 3, 7, 100}) {
    LabelFlow flow;
    const at::Tensor got =
        draw({.classes = {2, 0, 5}, .count = 7, .batch = batch, .seed = 4}, 1.0, &flow);
    EXPECT_EQ(flow.largest_batch, std::min<int64_t>(batch, 7));
    const at::Tensor labels = at::tensor({2, 0, 5, 2, 0, 5, 2}, at::kFloat).view({7, 1, 1, 1});
    EXPECT_TRUE(at::allclose(got, noise - labels, 1e-5, 1e-5)) << batch;
  }
}

TEST(SampleClassesTest, NoiseIsOfSeedAndImageNumber) {
  const at::Tensor all = draw({.classes = {1, 2}, .count = 6, .batch = 4, .seed = 4});
  const at::Tensor part =
      draw({.classes = {1, 2}, .count = 3, .first_index = 2, .batch = 4, .seed = 4});
  EXPECT_TRUE(at::equal(part, all.narrow(0, 2, 3)));
  EXPECT_FALSE(at::equal(all[0], all[2])) << "of one class";
  EXPECT_FALSE(at::equal(all, draw({.classes = {1, 2}, .count = 6, .batch = 4, .seed = 5})));
}

TEST(SampleClassesTest, GuidanceMovesAwayFromTheNullClass) {
  const ClassToImageRequest request{.classes = {3}, .count = 4, .batch = 3, .seed = 4};
  const at::Tensor plain = draw(request);
  // null + 2 (label - null) = -4 in place of 3.
  EXPECT_TRUE(at::allclose(draw(request, 2.0), plain + 3.0 + 4.0, 1e-5, 1e-5));
}

TEST(SampleClassesTest, ProgressCountsImages) {
  LabelFlow flow;
  std::vector<double> seen;
  const SamplingConfig config{.steps = 2, .guidance = 1.0};
  (void)sample_classes(flow, make_sampler(config, diffusion::RectifiedFlow()), config,
                       {.classes = {1}, .count = 3, .batch = 2}, {3, 2, 5}, kNullClass, at::kCPU,
                       [&seen](double done) { seen.push_back(done); });
  EXPECT_EQ(seen, (std::vector<double>{1.0, 2.0, 2.5, 3.0}));
}

TEST(SampleClassesTest, BadRequestsAreRefused) {
  for (const ClassToImageRequest& request :
       {ClassToImageRequest{.classes = {kNullClass}}, ClassToImageRequest{.classes = {-1}},
        ClassToImageRequest{.classes = {}}, ClassToImageRequest{.classes = {0}, .count = 0},
        ClassToImageRequest{.classes = {0}, .count = 1, .batch = 0}}) {
    EXPECT_THROW((void)draw(request), Error);
  }
}

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

}  // namespace class_to_image_test
}  // namespace kinora::pipelines
