#include "kinora/models/transformers/pixart.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "tests/error_of.h"
#include "tests/models/transformers/video_fixture.h"
#include "tests/ops/tensors.h"

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
                         testing::Values("pixart", "pixart_sizes", "pixart_sigma", "pixart_kv_conv",
                                         "pixart_kv_ave", "pixart_kv_uniform", "pixart_kv_every"),
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

ModelConfig compressing(KvSampling sampling) {
  ModelConfig config;
  config.name = "PixArt-Sigma-XL/2";
  config.in_channels = 4;
  config.height = 32;
  config.width = 32;
  config.transformer.kv_compress = sampling;
  return config;
}

// The 2K model of PixArt-Sigma compresses in blocks 14 to 27.
TEST(PixArtKvCompressTest, TheSecondHalfHasThePublishedKeys) {
  PixArt model(resolved(compressing(KvSampling::kConv)));
  std::map<std::string, std::vector<int64_t>> own;
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (path.find(".attn.sr.") != std::string::npos ||
        path.find(".attn.norm.") != std::string::npos) {
      own[path] = parameter->shape;
    }
  }
  EXPECT_EQ(own.size(), 14U * 4U);
  EXPECT_EQ(own.at("blocks.14.attn.sr.weight"), (std::vector<int64_t>{1152, 1, 2, 2}));
  for (const char* name : {"sr.bias", "norm.weight", "norm.bias"}) {
    EXPECT_EQ(own.at(std::string("blocks.27.attn.") + name), std::vector<int64_t>{1152}) << name;
  }
}

// 4 C^2 and 2 N C a token of attention, of which half of the blocks keep a quarter of N.
TEST(PixArtKvCompressTest, FewerKeysAreFewerMultiplications) {
  const double all = forward_macs(resolved(compressing(KvSampling::kNone)));
  const double fewer = forward_macs(resolved(compressing(KvSampling::kUniform)));
  EXPECT_DOUBLE_EQ(all - fewer, 14.0 * 2.0 * 256.0 * (256.0 - 64.0) * 1152.0);
}

TEST(PixArtKvCompressTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [](const ModelConfig& config) {
    return error_of(ErrorKind::kConfig, [&] { return resolved(config).name; });
  };
  ModelConfig config = compressing(KvSampling::kConv);
  config.transformer.kv_compress_layers = {3, 28};
  EXPECT_NE(refusal(config).find("blocks from 0 to 27, got 28"), std::string::npos);
  config = compressing(KvSampling::kNone);
  config.transformer.kv_compress_layers = {3};
  EXPECT_NE(refusal(config).find("needs model.kv_compress"), std::string::npos);
  config = compressing(KvSampling::kAve);
  config.transformer.kv_compress_factor = 17;
  EXPECT_NE(refusal(config).find("must leave keys of 16 x 16 tokens, got 17"), std::string::npos);
}

class KvCompressionTest : public testing::TestWithParam<KvSampling> {};

/// Weights in double, so that differences are exact enough.
void set_random(nn::Module& module, int64_t seed) {
  for (const auto& [path, parameter] : module.named_parameters()) {
    parameter->value = ops::normal(parameter->shape, seed++).to(at::kDouble) * 0.5;
  }
}

TEST_P(KvCompressionTest, GradientsAreFiniteDifferences) {
  constexpr int64_t kHidden = 8;
  nn::SelfAttention attention({.hidden = kHidden, .heads = 2});
  KvCompression compression(kHidden, GetParam(), 2);
  set_random(attention, 10);
  set_random(compression, 20);
  const at::Tensor cotangent = ops::normal({2, 20, kHidden}, 1).to(at::kDouble);
  const auto f = [&](const at::Tensor& x) {
    return (compression.attend(attention, x, 5, 4) * cotangent).sum();
  };
  at::Tensor x = ops::normal({2, 20, kHidden}, 2).to(at::kDouble).set_requires_grad(true);
  torch::autograd::backward({f(x)}, {});
  const at::Tensor direction = ops::normal({2, 20, kHidden}, 3).to(at::kDouble);
  const at::NoGradGuard no_grad;
  EXPECT_NEAR((x.grad() * direction).sum().item<double>(), ops::finite_difference(f, x, direction),
              1e-6);
}

INSTANTIATE_TEST_SUITE_P(Samplings, KvCompressionTest,
                         testing::Values(KvSampling::kConv, KvSampling::kAve, KvSampling::kUniform,
                                         KvSampling::kUniformEvery));

// As published: before training a compressed token is the normed mean of its cell.
TEST(PixArtKvCompressTest, StartsAsTheMeanOfACell) {
  KvCompression compression(8, KvSampling::kConv, 2);
  for (const auto& [path, parameter] : compression.named_parameters()) {
    if (path == "sr.weight") {
      EXPECT_EQ(parameter->init.kind, nn::Init::Kind::kConstant);
      EXPECT_EQ(parameter->init.scale, 0.25);
    } else {
      EXPECT_EQ(parameter->init.kind,
                path == "norm.weight" ? nn::Init::Kind::kOne : nn::Init::Kind::kZero)
          << path;
    }
  }
}

}  // namespace pixart_test
}  // namespace kinora::models
