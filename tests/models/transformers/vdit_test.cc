#include "kinora/models/transformers/vdit.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>

#include "kinora/core/error.h"
#include "tests/models/transformers/video_fixture.h"

namespace kinora::models {
namespace vdit_test {

TEST(VDiTTest, OutputsMatchReference) {
  const VideoFixture fixture("vdit");
  VDiT model(fixture.config("vdit"));
  set_weights(model, fixture, false);
  expect_outputs(model, fixture);
}

TEST(VDiTTest, EveryGradientMatchesReferenceForEveryRecomputation) {
  const VideoFixture fixture("vdit");
  const ModelConfig config = fixture.config("vdit");
  for (int64_t recompute = 0; recompute <= config.transformer.depth; ++recompute) {
    SCOPED_TRACE(std::to_string(recompute) + " blocks recomputed");
    VDiT model(config);
    set_weights(model, fixture, true);
    model.set_recompute(recompute);
    expect_gradients(model, fixture);
  }
}

// DiT-XL/2 of 1000 classes has 675.13 M (Peebles and Xie 2023) with its position table. VDiT has a
// projection of captions for the table of classes, and its own tables of positions are buffers.
TEST(VDiTTest, SizesAreThoseOfDiT) {
  struct Row {
    const char* name;
    int64_t patch_frames;
  };
  for (const Row& row : {Row{"VDiT-XL/1x2x2", 1}, Row{"VDiT-XL/2x2x2", 2}}) {
    ModelConfig config;
    config.name = row.name;
    config.in_channels = 4;
    config.frames = 16;
    config.height = 32;
    config.width = 32;
    config = resolved(config);
    VDiT model(config);
    int64_t count = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      count += parameter->numel();
    }
    const int64_t captions = (config.text_channels + 1) * config.transformer.hidden;
    const int64_t classes = (1001 + 256) * config.transformer.hidden;  // and positions
    // More frames in a patch: wider projections into and out of the blocks, 4 + 8 channels.
    const int64_t frames =
        (row.patch_frames - 1) * ((4 + 8) * 4 * config.transformer.hidden + 8 * 4);
    EXPECT_NEAR(static_cast<double>(count - captions + classes - frames) / 1e6, 675.13, 0.006)
        << row.name;
  }
}

TEST(VDiTTest, BucketsHoldEveryParameterOnceAndAreToldInOrder) {
  const VideoFixture fixture("vdit");
  VDiT model(fixture.config("vdit"));
  const std::vector<nn::BucketSpec> buckets = model.buckets();
  std::multiset<std::string> in_buckets;
  std::vector<int64_t> ring;
  for (size_t i = 0; i < buckets.size(); ++i) {
    in_buckets.insert(buckets[i].parameters.begin(), buckets[i].parameters.end());
    if (!buckets[i].ring.empty()) {
      ring.push_back(static_cast<int64_t>(i));
    }
  }
  std::multiset<std::string> in_model;
  for (const auto& [path, parameter] : model.named_parameters()) {
    in_model.insert(path);
  }
  EXPECT_EQ(in_buckets, in_model);

  set_weights(model, fixture, true);
  std::vector<int64_t> forward;
  std::vector<int64_t> backward;
  model.tell_buckets([&](ops::BucketMoment moment, int64_t bucket) {
    if (moment == ops::BucketMoment::kBeforeForward) {
      forward.push_back(bucket);
    } else if (moment == ops::BucketMoment::kAfterBackward) {
      backward.push_back(bucket);
    }
  });
  expect_gradients(model, fixture);
  EXPECT_EQ(forward, ring);
  EXPECT_EQ(backward, std::vector<int64_t>(ring.rbegin(), ring.rend()));
}

TEST(VDiTTest, WrongInputsAreNamed) {
  const VideoFixture fixture("vdit");
  VDiT model(fixture.config("vdit"));
  set_weights(model, fixture, false);
  const at::Tensor x = fixture.tensor("forward.x_t");
  const at::Tensor t = fixture.tensor("forward.t");
  diffusion::Conditions conditions = fixture.conditions("forward");
  EXPECT_THROW((void)model.forward(x.narrow(2, 0, 2), t, conditions), Error);
  EXPECT_THROW((void)model.forward(x, t.to(at::kDouble), conditions), Error);
  conditions.frame_mask = at::ones({x.size(0), 2}, at::kBool);
  EXPECT_THROW((void)model.forward(x, t, conditions), Error);
  EXPECT_THROW((void)model.forward(x, t, {}), Error);
}

}  // namespace vdit_test
}  // namespace kinora::models
