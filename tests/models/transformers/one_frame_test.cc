// Models of clips of one size take images: clips that are their first frame.

#include <ATen/ops/constant_pad_nd.h>
#include <gtest/gtest.h>

#include "kinora/models/transformers/grid.h"
#include "tests/models/transformers/video_fixture.h"

namespace kinora::models {
namespace one_frame_test {

struct Family {
  const char* fixture;
  const char* architecture;
};

std::ostream& operator<<(std::ostream& stream, const Family& family) {
  return stream << family.fixture;
}

class OneFrameTest : public testing::TestWithParam<Family> {};

TEST_P(OneFrameTest, AsAModelMadeForOnePatchOfFrames) {
  const at::NoGradGuard no_grad;
  const VideoFixture fixture(GetParam().fixture);
  ModelConfig config = fixture.config(GetParam().architecture);
  ASSERT_GT(grid_of(config).frames, 1);
  const std::unique_ptr<Model> model = make_model(config);
  set_weights(*model, fixture, false);

  config.frames = config.transformer.patch_frames;
  const std::unique_ptr<Model> single = make_model(config);
  const auto weights = model->named_parameters();
  const auto single_weights = single->named_parameters();
  for (size_t i = 0; i < weights.size(); ++i) {
    single_weights[i].parameter->value = weights[i].parameter->value;
  }
  const auto buffers = model->named_buffers();
  const auto single_buffers = single->named_buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].path == "y_embedder.y_embedding") {
      *single_buffers[i].buffer = *buffers[i].buffer;
    }
  }

  const at::Tensor t = fixture.tensor("forward.t");
  const at::Tensor clip = fixture.tensor("forward.x_t").narrow(2, 0, 1);
  diffusion::Conditions conditions = fixture.conditions("forward");
  conditions.frame_mask = at::Tensor();
  const at::Tensor full =
      at::constant_pad_nd(clip, {0, 0, 0, 0, 0, config.transformer.patch_frames - 1});
  const at::Tensor expected = single->forward(full, t, conditions).narrow(2, 0, 1);
  const at::Tensor of_clip = model->forward(clip, t, conditions);
  ASSERT_EQ(of_clip.sizes(), expected.sizes());
  EXPECT_LT(relative_error(of_clip, expected), 1e-6);
  EXPECT_TRUE(model->forward(clip.squeeze(2), t, conditions).unsqueeze(2).equal(of_clip));
}

INSTANTIATE_TEST_SUITE_P(Families, OneFrameTest,
                         testing::Values(Family{"stdit", "stdit"}, Family{"latte", "latte"},
                                         Family{"vdit", "vdit"}),
                         [](const auto& info) { return std::string(info.param.fixture); });

}  // namespace one_frame_test
}  // namespace kinora::models
