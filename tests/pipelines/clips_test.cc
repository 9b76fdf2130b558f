#include "kinora/pipelines/clips.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora::pipelines {
namespace clips_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kFrames = 6;

/// A flow of constant velocity, the label, so that a frame is its noise minus the label.
class LabelFlow : public diffusion::Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                     const diffusion::Conditions& conditions,
                     const diffusion::Pass& /*pass*/) override {
    if (conditions.frame_mask.defined()) {
      masks.push_back(conditions.frame_mask);
    }
    return x_t * 0.0 + conditions.labels.view({-1, 1, 1, 1, 1});
  }
  std::vector<at::Tensor> masks;
};

/// Sample i has label i.
DrawConditions label_of(int64_t first, int64_t size) {
  return {.conditions = {.labels = at::arange(first, first + size, at::kLong)}, .null = {}};
}

at::Tensor drawn(const ClipOptions& options, int64_t count = 3, int64_t batch = 2,
                 LabelFlow* flow = nullptr) {
  LabelFlow own;
  const SamplingConfig config{.steps = 2, .guidance = 1.0};
  return draw_clips(flow != nullptr ? *flow : own, make_sampler(config, diffusion::RectifiedFlow()),
                    config, {.samples = numbered_samples(0, count, 3, 1.0), .batch = batch},
                    {3, kFrames, 2, 4}, options, label_of, at::kCPU);
}

TEST(FramePlacesTest, NamedAndNumbered) {
  EXPECT_THAT(frame_places("head", 2, kFrames), ElementsAre(0, 1));
  EXPECT_THAT(frame_places("tail", 2, kFrames), ElementsAre(4, 5));
  EXPECT_THAT(frame_places("head_tail", 2, kFrames), ElementsAre(0, 5));
  EXPECT_THAT(frame_places("head_tail", 3, kFrames), ElementsAre(0, 1, 5));
  EXPECT_THAT(frame_places("head_tail", 1, kFrames), ElementsAre(0));
  EXPECT_THAT(frame_places("5, 0,2", 3, kFrames), ElementsAre(5, 0, 2));
}

TEST(FramePlacesTest, WrongOnesAreNamed) {
  const auto refusal = [](const char* where, int64_t count) {
    return error_of(ErrorKind::kConfig, [&] { return frame_places(where, count, kFrames); });
  };
  EXPECT_THAT(refusal("middle", 1), HasSubstr("middle"));
  EXPECT_THAT(refusal("0,", 2), HasSubstr("numbers such as"));
  EXPECT_THAT(refusal("6", 1), HasSubstr("0 to 5, got 6"));
  EXPECT_THAT(refusal("-1", 1), HasSubstr("got -1"));
  EXPECT_THAT(refusal("1,1", 2), HasSubstr("different"));
  EXPECT_THAT(refusal("0,1", 1), HasSubstr("1 given frame for 2 places: 0,1"));
  EXPECT_THAT(refusal("head", 6), HasSubstr("1 to 5 can be given, got 6"));
}

TEST(DrawClipsTest, GivenFramesComeOutAsTheyAreAndTheOthersAsWithout) {
  const at::Tensor frames = at::randn({3, 2, 2, 4});
  LabelFlow flow;
  const at::Tensor clips =
      drawn({.given = {.frames = frames.unsqueeze(0), .places = {4, 1}}}, 3, 2, &flow);
  const at::Tensor free = drawn({});
  EXPECT_EQ(clips.sizes(), (at::IntArrayRef{3, 3, kFrames, 2, 4}));
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(clips[i].select(1, 4), frames.select(1, 0)));
    EXPECT_TRUE(at::equal(clips[i].select(1, 1), frames.select(1, 1)));
    for (const int64_t frame : {0, 2, 3, 5}) {
      EXPECT_TRUE(at::equal(clips[i].select(1, frame), free[i].select(1, frame))) << frame;
    }
  }
  ASSERT_FALSE(flow.masks.empty());
  EXPECT_TRUE(
      at::equal(flow.masks.front()[0].to(at::kLong), at::tensor({1, 0, 1, 1, 0, 1}).to(at::kLong)));
}

TEST(DrawClipsTest, ClipsTakeGivenFramesInTurn) {
  const at::Tensor frames = at::randn({2, 3, 1, 2, 4});
  const ClipOptions options{.given = {.frames = frames, .places = {1}}};
  const at::Tensor clips = drawn(options, 5, 2);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(at::equal(clips[i].select(1, 1), frames[i % 2].select(1, 0))) << i;
  }
}

TEST(DrawClipsTest, PiecesGoOnFromTheOneBefore) {
  LabelFlow flow;
  const at::Tensor whole = drawn({.pieces = 3, .overlap = 2}, 3, 2, &flow);
  EXPECT_EQ(whole.sizes(), (at::IntArrayRef{3, 3, 3 * (kFrames - 2) + 2, 2, 4}));
  EXPECT_TRUE(at::equal(whole.narrow(2, 0, kFrames), drawn({})));
  // Conditions are those of the clip in every piece, and noise is fresh in each: noise - label.
  const at::Tensor second = whole.narrow(2, kFrames, 4);
  const at::Tensor third = whole.narrow(2, kFrames + 4, 4);
  EXPECT_FALSE(at::allclose(second, third));
  EXPECT_FALSE(at::allclose(second, whole.narrow(2, 2, 4)));
  const at::Tensor label = at::arange(3, at::kFloat);
  EXPECT_TRUE(at::allclose((second + label.view({3, 1, 1, 1, 1})).mean({1, 2, 3, 4}),
                           at::full({3}, 0.0), 0.0, 0.5));
  ASSERT_FALSE(flow.masks.empty());
  EXPECT_TRUE(
      at::equal(flow.masks.back()[0].to(at::kLong), at::tensor({0, 0, 1, 1, 1, 1}).to(at::kLong)));
}

TEST(DrawClipsTest, EditedFramesAreDrawnOnAndSharedOnesKept) {
  const ClipOptions options{.given = {.frames = at::randn({1, 3, 1, 2, 4}), .places = {2}},
                            .given_edit = 0.5,
                            .pieces = 2,
                            .overlap = 1};
  LabelFlow flow;
  const at::Tensor clips = drawn(options, 1, 1, &flow);
  const at::Tensor free = drawn({}, 1, 1);
  const at::Tensor given = options.given.frames[0].select(1, 0);
  // Half of it is noise of variance 1 / 4; the label is 0.
  const at::Tensor rest = clips[0].select(1, 2) - 0.5 * given;
  EXPECT_GT(rest.abs().max().item<double>(), 0.1);
  EXPECT_LT(rest.abs().max().item<double>(), 3.0);
  EXPECT_TRUE(at::equal(clips[0].select(1, 1), free[0].select(1, 1)));
  // Of two steps, at 1 and 0.5: the first piece shows the given frame clean in one, the second
  // what it was given in both.
  ASSERT_EQ(flow.masks.size(), 3U);
  EXPECT_EQ(flow.masks[0][0].logical_not().nonzero().item<int64_t>(), 2);
  EXPECT_EQ(flow.masks[1][0].logical_not().nonzero().item<int64_t>(), 0);
}

/// Keeps what it is shown.
class SeeingFlow : public diffusion::Denoiser {
 public:
  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                     const diffusion::Conditions& /*conditions*/,
                     const diffusion::Pass& /*pass*/) override {
    shown.push_back(x_t.clone());
    return x_t * 0.0;
  }
  std::vector<at::Tensor> shown;
};

// Open-Sora 1.3, schedulers/rf with use_sdedit: (1 - t) given + t noise, noise anew in each step.
TEST(DrawClipsTest, GivenFramesMayBeShownNoised) {
  const at::Tensor frames = at::randn({3, 1, 64, 64}) + 5.0;
  const SamplingConfig config{.steps = 2, .guidance = 1.0};
  const diffusion::Sampler sampler = make_sampler(config, diffusion::RectifiedFlow());
  const ClipOptions options{.given = {.frames = frames.unsqueeze(0), .places = {1}},
                            .given_way = diffusion::GivenWay::kNoised};
  SeeingFlow flow;
  const at::Tensor clip =
      draw_clips(flow, sampler, config, {.samples = numbered_samples(0, 1, 3, 1.0)},
                 {3, kFrames, 64, 64}, options, label_of, at::kCPU)[0];
  EXPECT_TRUE(at::equal(clip.select(1, 1), frames.select(1, 0)));
  ASSERT_EQ(flow.shown.size(), 2U);
  const auto& times = std::get<diffusion::FlowEulerSampler>(sampler).times;
  std::vector<at::Tensor> noises;
  for (size_t k = 0; k < 2; ++k) {
    const double t = times[k];
    const at::Tensor seen = flow.shown[k][0].select(1, 1);
    noises.push_back((seen - (1.0 - t) * frames.select(1, 0)) / t);
    EXPECT_NEAR(noises.back().mean().item<double>(), 0.0, 0.05) << k;
    EXPECT_NEAR(noises.back().std().item<double>(), 1.0, 0.05) << k;
  }
  EXPECT_LT((noises[0] * noises[1]).mean().abs().item<double>(), 0.05) << "noise is fresh";

  const SamplingConfig chain{.steps = 2, .guidance = 1.0};
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         return draw_clips(flow, diffusion::DdimSampler{}, chain,
                                           {.samples = numbered_samples(0, 1, 3, 1.0)},
                                           {3, kFrames, 64, 64}, options, label_of, at::kCPU)
                             .dim();
                       }),
              HasSubstr("sample.method=euler"));
}

TEST(DrawClipsTest, BatchesChangeNothing) {
  const ClipOptions options{
      .given = {.frames = at::randn({1, 3, 1, 2, 4}), .places = {0}}, .pieces = 2, .overlap = 1};
  const at::Tensor expected = drawn(options, 4, 4);
  for (const int64_t batch : {1, 3}) {
    EXPECT_TRUE(at::equal(drawn(options, 4, batch), expected)) << batch;
  }
  EXPECT_TRUE(at::equal(drawn(options, 2, 2), expected.narrow(0, 0, 2)));
}

// A batch is whole, with all its pieces, before the next one begins.
TEST(DrawClipsTest, ABatchHasTheStepsOfAllItsPieces) {
  LabelFlow flow;
  const SamplingConfig config{.steps = 2, .guidance = 1.0};
  std::vector<double> parts;
  std::vector<int64_t> done;
  EXPECT_TRUE(draw_clip_batches(flow, make_sampler(config, diffusion::RectifiedFlow()), config,
                                {.samples = numbered_samples(0, 2, 3, 1.0), .batch = 1},
                                {3, kFrames, 2, 4}, {.pieces = 2, .overlap = 1}, label_of, at::kCPU,
                                {.done =
                                     [&](int64_t first, const at::Tensor& clips) {
                                       done.push_back(first);
                                       EXPECT_EQ(clips.size(2), 2 * kFrames - 1);
                                     },
                                 .progress =
                                     [&](const DrawProgress& now) {
                                       EXPECT_EQ(now.steps, 4);
                                       parts.push_back(now.part);
                                     }}));
  EXPECT_THAT(parts, ElementsAre(0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0));
  EXPECT_THAT(done, ElementsAre(0, 1));
}

TEST(DrawClipsTest, WrongOptionsAreRefused) {
  const auto refusal = [](ErrorKind kind, const ClipOptions& options) {
    return error_of(kind, [&] { return drawn(options); });
  };
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.pieces = 2, .overlap = 0}), HasSubstr("1 to 5"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.pieces = 2, .overlap = 6}), HasSubstr("got 6"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.pieces = 0}), HasSubstr("got 0"));
  EXPECT_THAT(refusal(ErrorKind::kShape,
                      {.given = {.frames = at::full({1, 3, 2, 2, 4}, 0.0), .places = {0}}}),
              HasSubstr("[N, 3, 1, 2, 4]"));
  EXPECT_THAT(refusal(ErrorKind::kConfig, {.given_edit = 1.5}), HasSubstr("0 to 1, got 1.5"));
  LabelFlow flow;
  for (const diffusion::Sampler& sampler : {diffusion::Sampler(diffusion::DdimSampler()),
                                            diffusion::Sampler(diffusion::SolverPlan())}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] {
                           return draw_clips(flow, sampler, {}, {.samples = {{}}},
                                             {3, kFrames, 2, 4}, {.given_edit = 0.5}, label_of,
                                             at::kCPU);
                         }),
                HasSubstr("sample.method=euler"));
  }
  // Of given frames, by another method, and beside noised ones.
  const GivenFrames given{.frames = at::full({1, 3, 1, 2, 4}, 0.0), .places = {0}};
  const diffusion::Sampler euler = diffusion::FlowEulerSampler{.times = {1.0, 0.0}};
  for (const auto& [sampler, way] :
       {std::pair(diffusion::Sampler(diffusion::SolverPlan()), diffusion::GivenWay::kClean),
        std::pair(euler, diffusion::GivenWay::kNoised)}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig,
                         [&] {
                           return draw_clips(flow, sampler, {.given_noise = 0.1}, {.samples = {{}}},
                                             {3, kFrames, 2, 4}, {.given = given, .given_way = way},
                                             label_of, at::kCPU);
                         }),
                HasSubstr(way == diffusion::GivenWay::kClean ? "got sample.given_noise 0.1"
                                                             : "in whose clips these stand"));
  }
}

}  // namespace clips_test
}  // namespace kinora::pipelines
