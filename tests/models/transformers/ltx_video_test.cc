#include "kinora/models/transformers/ltx_video.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/models/transformers/diffusers_fixture.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace ltx_video_test {

using testing::HasSubstr;

/// A file of tools/reference/make_ltx_video_fixtures.py, whose top lists the tensors.
class Fixture : public DiffusersFixture {
 public:
  using DiffusersFixture::DiffusersFixture;

  [[nodiscard]] ModelConfig config() const {
    const nlohmann::json values = this->values();
    ModelConfig config;
    config.architecture = "ltx_video";
    config.in_channels = values["in_channels"];
    config.frames = 3;
    config.height = 8;
    config.width = 8;
    config.compression = 32;
    config.frame_compression = 8;
    config.learn_sigma = false;
    config.time_scale = 1000.0;
    config.text_channels = values["caption_channels"];
    config.text_tokens = 7;
    TransformerConfig& own = config.transformer;
    own.depth = values["num_layers"];
    own.heads = values["num_attention_heads"];
    own.hidden = own.heads * values["attention_head_dim"].get<int64_t>();
    return resolved(config);
  }

  [[nodiscard]] diffusion::Conditions conditions() const {
    diffusion::Conditions conditions;
    conditions.text = find("forward.text").set_requires_grad(true);
    conditions.text_lengths = find("forward.text_lengths");
    conditions.fps = find("forward.fps");
    if (const at::Tensor mask = find("forward.frame_mask"); mask.defined()) {
      conditions.frame_mask = mask.to(at::kBool);
    }
    return conditions;
  }
};

size_t set_weights(Model& model, const Shapes& shapes) {
  return set_named_weights(model, ltx_video_naming(model.config()), shapes);
}

class LtxVideoTest : public testing::TestWithParam<const char*> {};

TEST_P(LtxVideoTest, ForwardAndGradientsAreThoseOfDiffusers) {
  const Fixture fixture(GetParam());
  const Shapes shapes = fixture.shapes();
  LtxVideo model(fixture.config());
  EXPECT_EQ(set_weights(model, shapes), shapes.size());
  at::Tensor x_t = fixture.find("forward.x_t").set_requires_grad(true);
  const diffusion::Conditions conditions = fixture.conditions();
  const at::Tensor output = model.forward(x_t, fixture.find("forward.t"), conditions);
  EXPECT_LT(ops::relative_error(output.detach(), fixture.find("forward.output")),
            tolerance::kOtherOrder);

  torch::autograd::backward({(output * formula_values("output", output.sizes())).sum()}, {});
  EXPECT_LT(ops::relative_error(x_t.grad(), fixture.find("grad.x_t")), tolerance::kWholeModel);
  EXPECT_LT(ops::relative_error(conditions.text.grad(), fixture.find("grad.text")),
            tolerance::kWholeModel);
  if (model.config().transformer.hidden < 1024) {  // those of wide weights take seconds
    expect_named_gradients(model, ltx_video_naming(model.config()), fixture);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LtxVideoTest,
                         testing::Values("ltx_video", "ltx_video_given", "ltx_video_wide"));

TEST(LtxVideoTextTest, OnlyTheWordsOfACaptionCount) {
  const at::NoGradGuard guard;
  const Fixture fixture("ltx_video");
  LtxVideo model(fixture.config());
  set_weights(model, fixture.shapes());
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor t = fixture.find("forward.t");
  const diffusion::Conditions conditions = fixture.conditions();
  const at::Tensor output = model.forward(x_t, t, conditions);
  // What stands behind a caption's length, and how far the batch is padded, is nobody's business.
  diffusion::Conditions padded = conditions;
  padded.text = at::constant_pad_nd(conditions.text.detach(), {0, 0, 0, 1}, 9.0);
  padded.text[1][3] = 5.0;
  EXPECT_LT(ops::relative_error(model.forward(x_t, t, padded), output), tolerance::kFewRoundings);
  padded.text_lengths = at::full({2}, 4, at::kLong);
  EXPECT_GT(ops::relative_error(model.forward(x_t, t, padded), output), 1e-3);
}

TEST(LtxVideoTextTest, ANullCaptionIsOneStateOfItsBuffer) {
  const at::NoGradGuard guard;
  const Fixture fixture("ltx_video");
  LtxVideo model(fixture.config());
  set_weights(model, fixture.shapes());
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor t = fixture.find("forward.t");
  model.null_caption().fill_(0.5);
  diffusion::Conditions conditions = fixture.conditions();
  conditions.null_text = at::tensor(std::vector<int64_t>{1, 0}).to(at::kBool);
  diffusion::Conditions empty = fixture.conditions();
  empty.text = empty.text.detach().clone();
  empty.text[0][0] = 0.5;
  empty.text_lengths = at::tensor(std::vector<int64_t>{1, 2});
  EXPECT_TRUE(model.forward(x_t, t, conditions).equal(model.forward(x_t, t, empty)));
}

TEST(LtxVideoModelTest, AFrameAloneHasNoRate) {
  const at::NoGradGuard guard;
  const Fixture fixture("ltx_video");
  LtxVideo model(fixture.config());
  set_weights(model, fixture.shapes());
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor t = fixture.find("forward.t");
  diffusion::Conditions conditions = fixture.conditions();
  const at::Tensor frame = model.forward(x_t.narrow(2, 0, 1), t, conditions);
  const at::Tensor clip = model.forward(x_t, t, conditions);
  conditions.fps = conditions.fps * 2.0;
  EXPECT_TRUE(model.forward(x_t.narrow(2, 0, 1), t, conditions).equal(frame));
  EXPECT_GT(ops::relative_error(model.forward(x_t, t, conditions), clip), 1e-3);
  EXPECT_TRUE(model.forward(x_t.select(2, 0), t, conditions).equal(frame.squeeze(2)));
  conditions.fps.reset();
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return model.forward(x_t, t, conditions); }),
              HasSubstr("needs fps"));
}

TEST(LtxVideoModelTest, RefusesPatches) {
  ModelConfig config = Fixture("ltx_video").config();
  config.transformer.patch = 2;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("model.patch and model.patch_frames must be 1"));
}

TEST(LtxVideoModelTest, PublishedSizesHaveTheirParameters) {
  const auto count = [](const char* name) {
    ModelConfig config;
    config.name = name;
    config.in_channels = 128;
    config.frames = 21;
    config.height = 16;
    config.width = 22;
    config.learn_sigma = false;
    config = resolved(config);
    EXPECT_EQ(config.compression, 32);
    EXPECT_EQ(config.frame_compression, 8);
    int64_t parameters = 0;
    const std::unique_ptr<Model> model = make_model(config);
    for (const auto& [path, parameter] : model->named_parameters()) {
      parameters += parameter->numel();
    }
    return parameters;
  };
  // diffusers' class with the published configurations.
  EXPECT_EQ(count("LTXVideo-2B"), 1'923'385'472);
  EXPECT_EQ(count("LTXVideo-13B"), 13'042'569'344);
}

// Every name and shape of the published file, as its configuration makes them
// (tools/reference/make_ltx_video_fixtures.py).
TEST(LtxVideoModelTest, NamesAndShapesAreThoseOfThePublishedFile) {
  ModelConfig config;
  config.name = "LTXVideo-2B";
  config.in_channels = 128;
  config.frames = 21;
  config.height = 16;
  config.width = 22;
  config.learn_sigma = false;
  const std::unique_ptr<Model> model = make_model(resolved(config));
  const Shapes published = DiffusersFixture("ltx_video_names").shapes();
  const auto keys = keys_of(ltx_video_naming(model->config()));
  size_t found = 0;
  for (const auto& [path, parameter] : model->named_parameters()) {
    int64_t elements = 0;
    for (const std::string& key : keys.at(path)) {
      ASSERT_TRUE(published.contains(key)) << key;
      int64_t count = 1;
      for (const int64_t size : published.at(key)) {
        count *= size;
      }
      elements += count;
      ++found;
    }
    EXPECT_EQ(elements, parameter->numel()) << path;
  }
  EXPECT_EQ(found, published.size());
}

}  // namespace ltx_video_test
}  // namespace kinora::models
