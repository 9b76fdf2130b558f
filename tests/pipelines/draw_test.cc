#include "kinora/pipelines/draw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace draw_test {

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

ConditionsOf labels_of(const std::vector<int64_t>& classes) {
  return [classes](int64_t first, int64_t size) {
    std::vector<int64_t> labels;
    for (int64_t i = first; i < first + size; ++i) {
      labels.push_back(classes[static_cast<size_t>(i) % classes.size()]);
    }
    return DrawConditions{.conditions = {.labels = at::tensor(labels, at::kLong)},
                          .null = {.labels = at::full({size}, kNullClass, at::kLong)}};
  };
}

/// Sample i has class classes[i % classes.size()].
at::Tensor drawn(const std::vector<SampleToDraw>& samples, const std::vector<int64_t>& classes,
                 int64_t batch, LabelFlow* flow = nullptr) {
  LabelFlow own;
  const SamplingConfig config{.steps = 2};
  return draw(flow != nullptr ? *flow : own, make_sampler(config, diffusion::RectifiedFlow()),
              config, {.samples = samples, .batch = batch}, {3, 2, 5}, labels_of(classes),
              at::kCPU);
}

/// The same samples of one class, batch by batch.
bool draw_batches(const DrawRequest& request, const DrawEvents& events) {
  LabelFlow flow;
  const SamplingConfig config{.steps = 2};
  return draw_batches(flow, make_sampler(config, diffusion::RectifiedFlow()), config, request,
                      {3, 2, 5}, labels_of({1}), at::kCPU, events);
}

TEST(DrawTest, BatchesChangeNothing) {
  const std::vector<SampleToDraw> samples = numbered_samples(0, 7, 4, 1.0);
  const at::Tensor noise = drawn(samples, {0}, 7);
  EXPECT_EQ(noise.sizes(), (at::IntArrayRef{7, 3, 2, 5}));
  for (const int64_t batch : {1, 2, 3, 7, 100}) {
    LabelFlow flow;
    const at::Tensor got = drawn(samples, {2, 0, 5}, batch, &flow);
    EXPECT_EQ(flow.largest_batch, std::min<int64_t>(batch, 7));
    const at::Tensor labels = at::tensor({2, 0, 5, 2, 0, 5, 2}, at::kFloat).view({7, 1, 1, 1});
    EXPECT_TRUE(at::allclose(got, noise - labels, 1e-5, 1e-5)) << batch;
  }
}

TEST(DrawTest, NoiseIsOfSeedAndNumber) {
  const at::Tensor all = drawn(numbered_samples(0, 6, 4, 1.0), {1, 2}, 4);
  const at::Tensor part = drawn(numbered_samples(2, 3, 4, 1.0), {1, 2}, 4);
  EXPECT_TRUE(at::equal(part, all.narrow(0, 2, 3)));
  EXPECT_FALSE(at::equal(all[0], all[2])) << "of one class";
  EXPECT_FALSE(at::equal(all, drawn(numbered_samples(0, 6, 5, 1.0), {1, 2}, 4)));
}

TEST(DrawTest, GuidanceMovesAwayFromTheNullClass) {
  const at::Tensor plain = drawn(numbered_samples(0, 4, 4, 1.0), {3}, 3);
  // null + 2 (label - null) = -4 in place of 3.
  EXPECT_TRUE(
      at::allclose(drawn(numbered_samples(0, 4, 4, 2.0), {3}, 3), plain + 3.0 + 4.0, 1e-5, 1e-5));
}

// Seeds and scales of several users in one batch: each sample is what it is alone.
TEST(DrawTest, SamplesOfABatchHaveSeedsAndScalesOfTheirOwn) {
  const std::vector<SampleToDraw> samples = {{.seed = 4, .index = 0, .guidance = 2.0},
                                             {.seed = ~uint64_t{0}, .index = 0, .guidance = 1.0},
                                             {.seed = 4, .index = 9, .guidance = 2.0},
                                             {.seed = 7, .index = 0, .guidance = 3.5}};
  const std::vector<int64_t> classes = {3, 1, 0, 2};
  const at::Tensor together = drawn(samples, classes, 4);
  for (int64_t i = 0; i < 4; ++i) {
    const auto number = static_cast<size_t>(i);
    const at::Tensor alone = drawn({samples[number]}, {classes[number]}, 1);
    EXPECT_TRUE(at::allclose(together[i], alone[0], 0.0, 1e-4)) << i;
  }
  // Without a label's part it is noise, which is the same in every bit.
  std::vector<SampleToDraw> plain = samples;
  for (SampleToDraw& sample : plain) {
    sample.guidance = 1.0;
  }
  const at::Tensor noise = drawn(plain, {0}, 4);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal(noise[i], drawn({plain[static_cast<size_t>(i)]}, {0}, 1)[0])) << i;
  }
}

TEST(DrawTest, ABatchIsHandedOverBeforeTheNextIsDrawn) {
  std::vector<std::string> heard;
  std::vector<at::Tensor> batches;
  EXPECT_TRUE(draw_batches(
      {.samples = numbered_samples(0, 3, 4, 1.0), .batch = 2},
      {.done =
           [&](int64_t first, const at::Tensor& samples) {
             heard.push_back("done " + std::to_string(first));
             batches.push_back(samples);
           },
       .progress =
           [&](const DrawProgress& now) {
             heard.push_back(std::to_string(now.first) + "+" + std::to_string(now.size) + " step " +
                             std::to_string(now.step) + "/" + std::to_string(now.steps) + " " +
                             std::to_string(std::lround(60 * now.part)));
           }}));
  EXPECT_EQ(heard, (std::vector<std::string>{"0+2 step 1/2 20", "0+2 step 2/2 40", "done 0",
                                             "2+1 step 1/2 50", "2+1 step 2/2 60", "done 2"}));
  EXPECT_TRUE(at::equal(at::cat(batches), drawn(numbered_samples(0, 3, 4, 1.0), {1}, 2)));
}

TEST(DrawTest, BatchesThatNobodyWantsAreLeftOut) {
  const DrawRequest request{.samples = numbered_samples(0, 5, 4, 1.0),
                            .batch = 2,
                            .wants = [](int64_t first, int64_t /*size*/) { return first == 2; }};
  std::vector<double> parts;
  at::Tensor only;
  EXPECT_TRUE(draw_batches(
      request, {.done =
                    [&](int64_t first, const at::Tensor& samples) {
                      EXPECT_EQ(first, 2);
                      only = samples;
                    },
                .progress = [&](const DrawProgress& now) { parts.push_back(now.part); }}));
  EXPECT_EQ(parts, (std::vector<double>{0.5, 1.0}));
  const at::Tensor all = drawn(request.samples, {1}, 2);
  EXPECT_TRUE(at::equal(only, all.narrow(0, 2, 2)));
}

TEST(DrawTest, StopsAfterTheStepThatIsUnderWay) {
  int64_t asked = 0;
  std::vector<int64_t> done;
  const DrawEvents events{
      .done = [&](int64_t first, const at::Tensor& /*samples*/) { done.push_back(first); },
      .stops = [&] { return ++asked == 3; }};  // after step 1 of the second batch
  EXPECT_FALSE(draw_batches({.samples = numbered_samples(0, 6, 4, 1.0), .batch = 2}, events));
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(done, (std::vector<int64_t>{0}));
}

TEST(DrawTest, BadRequestsAreRefused) {
  EXPECT_THROW((void)drawn({}, {0}, 1), Error);
  EXPECT_THROW((void)drawn(numbered_samples(0, 1, 0, 1.0), {0}, 0), Error);
  EXPECT_THROW((void)drawn({{.guidance = std::numeric_limits<double>::infinity()}}, {0}, 1), Error);
}

}  // namespace draw_test
}  // namespace kinora::pipelines
