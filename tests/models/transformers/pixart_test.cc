#include "kinora/models/transformers/pixart.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <set>

#include "kinora/core/error.h"
#include "tests/models/transformers/video_fixture.h"

namespace kinora::models {
namespace pixart_test {

class PixArtFixtureTest : public testing::TestWithParam<const char*> {};

TEST_P(PixArtFixtureTest, OutputsMatchReference) {
  const VideoFixture fixture(GetParam());
  PixArt model(fixture.config("pixart"));
  set_weights(model, fixture, false);
  expect_outputs(model, fixture);
}

TEST_P(PixArtFixtureTest, EveryGradientMatchesReferenceForEveryRecomputation) {
  const VideoFixture fixture(GetParam());
  const ModelConfig config = fixture.config("pixart");
  for (int64_t recompute = 0; recompute <= config.transformer.depth; ++recompute) {
    SCOPED_TRACE(std::to_string(recompute) + " blocks recomputed");
    PixArt model(config);
    set_weights(model, fixture, true);
    model.set_recompute(recompute);
    expect_gradients(model, fixture);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PixArtFixtureTest,
                         testing::Values("pixart", "pixart_sizes", "pixart_sigma"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PixArtTest, ImagesAndClipsOfOneFrameAreTheSame) {
  const VideoFixture fixture("pixart");
  PixArt model(fixture.config("pixart"));
  set_weights(model, fixture, false);
  const at::NoGradGuard no_grad;
  const at::Tensor clip = fixture.tensor("forward.x_t");  // [B, C, 1, H, W]
  const at::Tensor image =
      model.forward(clip.squeeze(2), fixture.tensor("forward.t"), fixture.conditions("forward"));
  EXPECT_TRUE(image.unsqueeze(2).equal(fixture.run(model, "forward")));
}

// PixArt-alpha's paper has 0.6 B. The digits are those of tools/reference, whose models were
// compared with the published ones.
TEST(PixArtTest, SizesArePublished) {
  struct Row {
    const char* name;
    double millions;
  };
  for (const Row& row : {Row{"PixArt-XL/2", 610.86}, Row{"PixArt-1B/2", 1607.26},
                         Row{"PixArt-MS-XL/2", 611.35}, Row{"PixArt-Sigma-XL/2", 610.86}}) {
    ModelConfig config;
    config.name = row.name;
    config.in_channels = 4;
    config.height = 32;
    config.width = 32;
    PixArt model(resolved(config));
    int64_t count = 0;
    for (const auto& [path, parameter] : model.named_parameters()) {
      count += parameter->numel();
    }
    EXPECT_NEAR(static_cast<double>(count) / 1e6, row.millions, 0.006) << row.name;
  }
}

TEST(PixArtTest, BucketsHoldEveryParameterOnce) {
  PixArt model(VideoFixture("pixart_sizes").config("pixart"));
  std::multiset<std::string> in_buckets;
  for (const nn::BucketSpec& bucket : model.buckets()) {
    in_buckets.insert(bucket.parameters.begin(), bucket.parameters.end());
  }
  std::multiset<std::string> in_model;
  for (const auto& [path, parameter] : model.named_parameters()) {
    in_model.insert(path);
  }
  EXPECT_EQ(in_buckets, in_model);
}

TEST(PixArtTest, WrongInputsAreNamed) {
  const VideoFixture fixture("pixart_sizes");
  PixArt model(fixture.config("pixart"));
  set_weights(model, fixture, false);
  const at::Tensor x = fixture.tensor("forward.x_t");
  const at::Tensor t = fixture.tensor("forward.t");
  diffusion::Conditions conditions = fixture.conditions("forward");
  EXPECT_THROW((void)model.forward(at::cat({x, x}, 2), t, conditions), Error);
  EXPECT_THROW((void)model.forward(x, t.to(at::kDouble), conditions), Error);
  conditions.height = at::Tensor();
  EXPECT_THROW((void)model.forward(x, t, conditions), Error);
  conditions = fixture.conditions("forward");
  conditions.text = at::Tensor();
  EXPECT_THROW((void)model.forward(x, t, conditions), Error);

  ModelConfig config = fixture.config("pixart");
  config.transformer.hidden = 16;
  EXPECT_THROW((void)resolved(config), Error);
}

}  // namespace pixart_test
}  // namespace kinora::models
