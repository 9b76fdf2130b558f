#include "kinora/models/transformers/wan.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/models/transformers/original_names.h"
#include "tests/error_of.h"
#include "tests/models/formula_values.h"
#include "tests/models/transformers/diffusers_fixture.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace wan_test {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// A file of tools/reference/make_wan_fixtures.py, whose top lists the tensors.
class Fixture : public DiffusersFixture {
 public:
  using DiffusersFixture::DiffusersFixture;

  [[nodiscard]] ModelConfig config() const {
    const json values = this->values();
    ModelConfig config;
    config.architecture = "wan";
    config.in_channels = values["out_channels"];
    config.frames = 3;
    config.height = 8;
    config.width = 8;
    config.learn_sigma = false;
    config.time_scale = 1000.0;
    config.text_channels = values["text_dim"];
    config.text_tokens = std::stoll(metadata("text_tokens"));
    TransformerConfig& own = config.transformer;
    own.depth = values["num_layers"];
    own.heads = values["num_attention_heads"];
    own.hidden = own.heads * values["attention_head_dim"].get<int64_t>();
    own.patch = 2;
    own.mlp_ratio = values["ffn_dim"].get<double>() / static_cast<double>(own.hidden);
    own.given_embedders = values.contains("image_dim");
    own.image_channels = values.value("image_dim", 0);
    own.image_positions = values.value("pos_embed_seq_len", 0);
    return resolved(config);
  }

  [[nodiscard]] diffusion::Conditions conditions() const {
    diffusion::Conditions conditions;
    conditions.text = find("forward.text").set_requires_grad(true);
    conditions.text_lengths = find("forward.text_lengths");
    if (const at::Tensor mask = find("forward.frame_mask"); mask.defined()) {
      conditions.frame_mask = mask.to(at::kBool);
    }
    conditions.beside = find("forward.beside");
    if (const at::Tensor image = find("forward.image"); image.defined()) {
      conditions.image_prompt = image.set_requires_grad(true);
    }
    return conditions;
  }
};

size_t set_weights(Model& model, const Shapes& shapes) {
  return set_named_weights(model, wan_naming(model.config()), shapes);
}

class WanTest : public testing::TestWithParam<const char*> {};

TEST_P(WanTest, ForwardAndGradientsAreThoseOfDiffusers) {
  const Fixture fixture(GetParam());
  const Shapes shapes = fixture.shapes();
  Wan model(fixture.config());
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
  if (conditions.image_prompt.defined()) {
    EXPECT_LT(ops::relative_error(conditions.image_prompt.grad(), fixture.find("grad.image")),
              tolerance::kWholeModel);
  }
  expect_named_gradients(model, wan_naming(model.config()), fixture);
}

INSTANTIATE_TEST_SUITE_P(Models, WanTest,
                         testing::Values("wan", "wan_given", "wan_image", "wan_flf"));

TEST(WanTextTest, OnlyTheWordsOfACaptionCount) {
  const at::NoGradGuard guard;
  const Fixture fixture("wan");
  Wan model(fixture.config());
  set_weights(model, fixture.shapes());
  const at::Tensor x_t = fixture.find("forward.x_t");
  const at::Tensor t = fixture.find("forward.t");
  const diffusion::Conditions conditions = fixture.conditions();
  const at::Tensor output = model.forward(x_t, t, conditions);
  // What stands behind a caption's length, and how far the batch is padded, is nobody's business.
  diffusion::Conditions padded = conditions;
  padded.text = at::constant_pad_nd(conditions.text.detach(), {0, 0, 0, 1}, 9.0);
  padded.text[1][3] = 5.0;
  EXPECT_TRUE(model.forward(x_t, t, padded).equal(output));
  padded.text_lengths = at::full({2}, 4, at::kLong);
  EXPECT_FALSE(model.forward(x_t, t, padded).equal(output));
}

TEST(WanTextTest, ANullCaptionIsOneStateOfItsBuffer) {
  const at::NoGradGuard guard;
  const Fixture fixture("wan");
  Wan model(fixture.config());
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

ModelConfig own_text() {
  ModelConfig config;
  config.architecture = "wan";
  config.frames = 2;
  config.height = 4;
  config.width = 4;
  config.learn_sigma = false;
  config.time_scale = 1000.0;
  config.text_tokens = 6;
  config.text_encoder = {.layers = 1, .width = 8, .heads = 2, .mlp = 16, .vocab = 20};
  config.transformer.depth = 1;
  config.transformer.hidden = 16;
  config.transformer.heads = 2;
  config.transformer.patch = 2;
  return resolved(config);
}

TEST(WanTextTest, AnEncoderOfItsOwnIsReadInTheSameWay) {
  const at::NoGradGuard guard;
  Wan model(own_text());
  set_formula_weights(model);
  EXPECT_FALSE(model.null_caption().defined());
  const at::Tensor x_t = formula_values("x_t", {1, 3, 2, 4, 4});
  const auto drawn = [&](const std::vector<int64_t>& ids, int64_t length) {
    diffusion::Conditions conditions;
    conditions.tokens = at::tensor(ids, at::kLong).unsqueeze(0);
    conditions.text_lengths = at::full({1}, length, at::kLong);
    return model.forward(x_t, at::full({1}, 0.5, at::kFloat), conditions);
  };
  const at::Tensor alone = drawn({3, 5, 1}, 3);
  EXPECT_LT(ops::relative_error(drawn({3, 5, 1, 0, 9, 2}, 3), alone), tolerance::kFewRoundings);
  EXPECT_GT(ops::relative_error(drawn({3, 5, 1, 0, 9, 2}, 6), alone), 1e-3);
}

TEST(WanModelTest, RefusesWhatDoesNotFit) {
  ModelConfig config = own_text();
  config.transformer.hidden = 12;
  config.transformer.heads = 4;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("model.hidden / model.heads must be even for its rotary embedding, got 3"));
  const Fixture fixture("wan");
  Wan model(fixture.config());
  set_weights(model, fixture.shapes());
  diffusion::Conditions conditions = fixture.conditions();
  conditions.text = at::zeros({2, 8, 10}, at::kFloat);
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return model.forward(fixture.find("forward.x_t"),
                                              fixture.find("forward.t"), conditions);
                       }),
              HasSubstr("text must have shape [B, up to 7, 10], got [2, 8, 10]"));
}

TEST(WanModelTest, RefusesOtherFramesThanItReads) {
  const Fixture fixture("wan_flf");
  Wan model(fixture.config());
  set_weights(model, fixture.shapes());
  const auto refusal = [&](const diffusion::Conditions& conditions) {
    return error_of(ErrorKind::kShape, [&] {
      return model.forward(fixture.find("forward.x_t"), fixture.find("forward.t"), conditions);
    });
  };
  diffusion::Conditions conditions = fixture.conditions();
  conditions.image_prompt = conditions.image_prompt.narrow(1, 0, 5);
  EXPECT_THAT(refusal(conditions),
              AllOf(HasSubstr("must have shape [B, 10, 18], got [2, 5, 18]"),
                    HasSubstr("a model of first and last frames reads those of both")));
  conditions = fixture.conditions();
  conditions.beside = conditions.beside.narrow(1, 0, 6);
  EXPECT_THAT(refusal(conditions), HasSubstr("must have 7 channels"));
  conditions.beside.reset();
  EXPECT_THAT(refusal(conditions), HasSubstr("must have 7 channels"));
  ModelConfig config = fixture.config();
  config.transformer.given_embedders = false;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("model.image_channels are of models with model.given_embedders, got 18"));
  config.transformer.image_channels = 0;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config).name; }),
              HasSubstr("model.image_positions needs model.image_channels, got 10"));
}

class WanNamesTest : public testing::TestWithParam<const char*> {};

// Every parameter has a name in the files of the authors, and these are found by their names.
TEST_P(WanNamesTest, AuthorsNamesAreFoundAgain) {
  Wan model(Fixture(GetParam()).config());
  const auto keys = keys_of(original_wan_naming(model.config()));
  EXPECT_EQ(keys.size(), model.named_parameters().size());
  std::vector<std::string> all;
  for (const auto& [path, parameter] : model.named_parameters()) {
    all.insert(all.end(), keys.at(path).begin(), keys.at(path).end());
  }
  for (const std::string prefix : {"", kModelPrefix}) {
    std::vector<std::string> prefixed;
    for (const std::string& key : all) {
      prefixed.push_back(prefix + key);
    }
    const auto found = find_original_naming(prefixed, {});
    ASSERT_TRUE(found.has_value());
    for (const auto& [path, theirs] : keys_of(*found)) {
      ASSERT_EQ(theirs.size(), keys.at(path).size()) << path;
      for (size_t i = 0; i < theirs.size(); ++i) {
        EXPECT_EQ(theirs[i], prefix + keys.at(path)[i]);
      }
    }
  }
  // As in Wan2.1_T2V_1.3B's file.
  for (const char* key :
       {"patch_embedding.weight", "text_embedding.2.bias", "time_embedding.0.weight",
        "time_projection.1.weight", "blocks.0.modulation", "blocks.1.norm3.weight",
        "blocks.1.self_attn.norm_q.weight", "blocks.0.self_attn.o.bias",
        "blocks.0.cross_attn.k.weight", "blocks.1.cross_attn.norm_k.weight", "blocks.0.ffn.2.bias",
        "head.modulation", "head.head.weight"}) {
    EXPECT_THAT(all, testing::Contains(key));
  }
  // As in those of Wan2.1-I2V-14B-480P and of Wan2.1-FLF2V-14B-720P.
  const TransformerConfig& own = model.config().transformer;
  for (const char* key :
       {"img_emb.proj.0.weight", "img_emb.proj.1.bias", "img_emb.proj.3.weight",
        "img_emb.proj.4.bias", "blocks.0.cross_attn.k_img.weight", "blocks.1.cross_attn.v_img.bias",
        "blocks.0.cross_attn.norm_k_img.weight"}) {
    EXPECT_EQ(std::ranges::count(all, key), own.image_channels > 0 ? 1 : 0) << key;
  }
  EXPECT_EQ(std::ranges::count(all, "img_emb.emb_pos"), own.image_positions > 0 ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Models, WanNamesTest, testing::Values("wan", "wan_image", "wan_flf"));

TEST(WanModelTest, PublishedSizesHaveTheirParameters) {
  const auto count = [](const char* name) {
    ModelConfig config;
    config.name = name;
    config.in_channels = std::string_view(name).ends_with("5B") ? 48 : 16;
    config.frames = 5;
    config.height = 64;
    config.width = 64;
    config.learn_sigma = false;
    int64_t parameters = 0;
    const std::unique_ptr<Model> model = make_model(resolved(config));
    for (const auto& [path, parameter] : model->named_parameters()) {
      parameters += parameter->numel();
    }
    return parameters;
  };
  // diffusers' class with the published configurations.
  EXPECT_EQ(count("Wan2.1-T2V-1.3B"), 1'418'996'800);
  EXPECT_EQ(count("Wan2.1-T2V-14B"), 14'288'491'584);
  EXPECT_EQ(count("Wan2.1-I2V-14B"), 16'394'878'784);
  EXPECT_EQ(count("Wan2.1-FLF2V-14B"), 16'395'536'704);
  EXPECT_EQ(count("Wan2.2-T2V-A14B"), 14'288'491'584);
  EXPECT_EQ(count("Wan2.2-I2V-A14B"), 14'288'901'184);
  EXPECT_EQ(count("Wan2.2-TI2V-5B"), 4'999'787'712);
}

}  // namespace wan_test
}  // namespace kinora::models
