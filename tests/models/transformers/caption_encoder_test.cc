#include "kinora/models/transformers/caption_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <set>
#include <string>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/pixart.h"
#include "tests/error_of.h"
#include "tests/models/small_network.h"

namespace kinora::models {
namespace caption_encoder_test {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig config_with_encoder() {
  ModelConfig config;
  config.architecture = "pixart";
  config.transformer.depth = 2;
  config.transformer.hidden = 24;
  config.transformer.heads = 3;
  config.transformer.patch = 2;
  config.height = 8;
  config.width = 8;
  config.learn_sigma = false;
  config.text_tokens = 6;
  config.text_encoder = {.layers = 2, .width = 16, .heads = 2, .mlp = 32, .vocab = 20};
  return config;
}

// Values of about 0.1, so that no parameter is without effect.
void set_values(Model& model) {
  uint64_t number = 0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->value = (at::arange(parameter->numel(), at::kFloat) + static_cast<double>(++number))
                           .mul(1.7)
                           .sin()
                           .mul(0.2)
                           .view(parameter->shape);
    parameter->value.set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
}

at::Tensor ids() {
  return at::arange(12, at::kLong).remainder(20).view({2, 6});
}

at::Tensor predict(PixArt& model, const at::Tensor& tokens, const at::Tensor& lengths,
                   const at::Tensor& null_text = {}) {
  const at::Tensor x = at::arange(2 * 3 * 8 * 8, at::kFloat).mul(0.3).cos().view({2, 3, 8, 8});
  return model.forward(x, at::full({2}, 0.5, at::kFloat),
                       {.tokens = tokens, .text_lengths = lengths, .null_text = null_text});
}

TEST(CaptionEncoderTest, ItsParametersLearnAndLieInTheEmbeddersBucket) {
  PixArt model(resolved(config_with_encoder()));
  set_values(model);
  const at::Tensor out = predict(model, ids(), at::tensor({6, 4}, at::kLong));
  torch::autograd::backward({(out * out).sum()}, {});
  int64_t number = 0;
  const std::vector<nn::BucketSpec> buckets = model.buckets();
  const std::set<std::string> embedders(buckets.front().parameters.begin(),
                                        buckets.front().parameters.end());
  EXPECT_TRUE(buckets.front().fp32_island);
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (path.starts_with("text_encoder.")) {
      ++number;
      EXPECT_GT(parameter->grad.abs().max().item<float>(), 0.0F) << path;
      EXPECT_TRUE(embedders.contains(path)) << path;
      EXPECT_EQ(parameter->layer, 0) << path;
    }
  }
  EXPECT_EQ(number, 1 + 8 + 1 + 8 + 1);  // vocabulary, two blocks with one table, norm
}

TEST(CaptionEncoderTest, PaddingAndNullCaptionsAreNotRead) {
  PixArt model(resolved(config_with_encoder()));
  set_values(model);
  const at::Tensor lengths = at::tensor({6, 4}, at::kLong);
  const at::Tensor out = predict(model, ids(), lengths);
  at::Tensor others = ids();
  others[1][4] = 3;
  others[1][5] = 19;
  EXPECT_TRUE(predict(model, others, lengths).equal(out));
  others[1][3] = 0;
  EXPECT_FALSE(predict(model, others, lengths).equal(out));
  const at::Tensor null = at::tensor({0, 1}, at::kLong).to(at::kBool);
  EXPECT_TRUE(predict(model, others, lengths, null).equal(predict(model, ids(), lengths, null)));
}

TEST(CaptionEncoderTest, ShorterPaddingIsTheSame) {
  PixArt model(resolved(config_with_encoder()));
  set_values(model);
  const at::Tensor lengths = at::tensor({3, 4}, at::kLong);
  EXPECT_TRUE(predict(model, ids().narrow(1, 0, 4), lengths)
                  .allclose(predict(model, ids(), lengths), 1e-4, 1e-5));
}

// What each family makes of captions depends on the encoder, on padding not, and its parameters
// learn.
TEST(CaptionEncoderTest, EveryFamilyOfCaptionsTrainsItsOwn) {
  int64_t number = 0;
  for (const Family& family : families()) {
    if (family.conditions.labels) {
      EXPECT_FALSE(family.conditions.tokens) << family.key;
      continue;
    }
    ++number;
    EXPECT_TRUE(family.conditions.tokens) << family.key;
    ModelConfig config = config_with_encoder();
    config.architecture = family.key;
    config.frames = family.is_video ? 2 : 1;
    const bool is_transformer = family.shape == transformer_shape;
    config.transformer = {};
    set_small_network(config, 2, is_transformer ? 48 : 16, is_transformer ? 3 : 2);
    const std::unique_ptr<Model> model = make_model(resolved(config));
    set_values(*model);
    const int64_t frames = config.frames;
    at::Tensor x = at::arange(2 * 3 * frames * 8 * 8, at::kFloat).mul(0.3).cos();
    x = family.is_video ? x.view({2, 3, frames, 8, 8}) : x.view({2, 3, 8, 8});
    const auto number_of = [](double value) { return at::full({2}, value, at::kFloat); };
    const auto out = [&](const at::Tensor& tokens, const at::Tensor& null = {}) {
      return model->forward(x, number_of(0.5),
                            {.tokens = tokens,
                             .text_lengths = at::tensor({6, 4}, at::kLong),
                             .null_text = null,
                             .fps = number_of(8.0),
                             .height = number_of(8.0),
                             .width = number_of(8.0),
                             .num_frames = number_of(2.0)});
    };
    const at::Tensor of_ids = out(ids());
    at::Tensor others = ids();
    others[1][5] = 19;  // behind its end
    EXPECT_TRUE(out(others).equal(of_ids)) << family.key;
    others[1][3] = 0;
    EXPECT_FALSE(out(others)[1].equal(of_ids[1])) << family.key;
    EXPECT_TRUE(out(others)[0].equal(of_ids[0])) << family.key;
    const at::Tensor null = at::tensor({0, 1}, at::kLong).to(at::kBool);
    EXPECT_TRUE(out(others, null).equal(out(ids(), null))) << family.key;

    torch::autograd::backward({(of_ids * of_ids).sum()}, {});
    int64_t learn = 0;
    for (const auto& [path, parameter] : model->named_parameters()) {
      if (path.starts_with("text_encoder.")) {
        learn += parameter->grad.abs().max().item<float>() > 0.0F ? 1 : 0;
      }
    }
    EXPECT_EQ(learn, 1 + 8 + 1 + 8 + 1) << family.key;
    EXPECT_THROW((void)out({}), Error) << family.key;
  }
  EXPECT_GE(number, 7);
}

TEST(CaptionEncoderTest, PooledIsTheMeanOfACaptionsRows) {
  CaptionEncoder encoder(resolved(config_with_encoder()));
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    parameter->value =
        at::arange(parameter->numel(), at::kFloat).mul(1.7).sin().view(parameter->shape);
  }
  const at::Tensor lengths = at::tensor({6, 4}, at::kLong);
  const at::Tensor states = encoder.embed_captions(ids(), lengths);
  const at::Tensor pooled = encoder.pool_captions(ids(), lengths);
  EXPECT_TRUE(pooled[0].allclose(states[0].mean(0)));
  EXPECT_TRUE(pooled[1].allclose(states[1].narrow(0, 0, 4).mean(0)));
}

TEST(CaptionEncoderTest, ForwardMacsCountIt) {
  // By hand, of 6 tokens of width 16: 2 layers of q, k, v, o (4 x 6 x 16 x 16), scores and values
  // (2 x 6 x 6 x 16), wi and wo (2 x 6 x 16 x 32).
  constexpr double kByHand = 2 * (6144.0 + 1152.0 + 6144.0);
  for (const char* architecture : {"pixart", "vdit", "latte_t2v"}) {
    ModelConfig config = config_with_encoder();
    config.architecture = architecture;
    config.frames = 1;
    const double with = forward_macs(resolved(config));
    config.text_encoder.layers = 0;
    config.text_channels = 16;
    EXPECT_EQ(with - forward_macs(resolved(config)), kByHand) << architecture;
  }
  CaptionEncoder encoder(resolved(config_with_encoder()));
  int64_t matrices = 0;
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    const bool is_table = path.find("shared") != std::string::npos ||
                          path.find("relative_attention_bias") != std::string::npos;
    matrices += parameter->shape.size() == 2 && !is_table ? parameter->numel() : 0;
  }
  EXPECT_EQ(6.0 * static_cast<double>(matrices) + 2 * 1152.0, kByHand);
}

TEST(CaptionEncoderTest, WrongInputsAndSizesAreNamed) {
  PixArt model(resolved(config_with_encoder()));
  set_values(model);
  const at::Tensor lengths = at::tensor({6, 4}, at::kLong);
  EXPECT_THROW((void)predict(model, {}, lengths), Error);
  EXPECT_THROW((void)predict(model, ids(), {}), Error);
  EXPECT_THROW((void)predict(model, ids().to(at::kInt), lengths), Error);
  EXPECT_THROW((void)predict(model, at::zeros({2, 7}, at::kLong), lengths), Error);

  ModelConfig config = config_with_encoder();
  config.text_channels = 64;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config); }),
              AllOf(HasSubstr("model.text_encoder.width = 16"), HasSubstr("got 64")));
  config = config_with_encoder();
  config.text_encoder.heads = 3;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config); }),
              HasSubstr("multiple of its heads = 3"));
  config = config_with_encoder();
  config.architecture = "dit";
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return resolved(config); }),
              AllOf(HasSubstr("has no text encoder"), HasSubstr("PixArt")));
}

}  // namespace caption_encoder_test
}  // namespace kinora::models
