// CLIP's image tower against transformers' (tools/reference/make_clip_fixtures.py).

#include "kinora/models/text_encoders/clip_image_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/error_of.h"
#include "tests/models/text_encoders/text_fixture.h"

namespace kinora::models {
namespace clip_image_encoder_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kInFp32 = 1e-5;

ClipImageConfig tiny() {
  return {.hidden_size = 24,
          .intermediate_size = 40,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .image_size = 22,  // four patches a side, two pixels left over
          .patch_size = 5,
          .activation = Activation::kGelu,
          .projection_dim = 10};
}

at::Tensor embeds_of(ClipImageEncoder& encoder, int64_t count) {
  set_formula_weights(encoder);
  const int64_t size = encoder.config().image_size;
  return encoder.forward(formula_values("pixels", {count, 3, size, size}));
}

TEST(ClipImageEncoderTest, EmbeddingsMatchTransformers) {
  const at::NoGradGuard no_grad;
  ClipImageEncoder encoder(tiny());
  EXPECT_LT(relative_difference(embeds_of(encoder, 3), TextFixture("clip_image").tensor("embeds")),
            kInFp32);
}

TEST(ClipImageEncoderTest, ABlockOfVitL14MatchesTransformers) {
  const at::NoGradGuard no_grad;
  ClipImageEncoder encoder({.hidden_size = 1024,
                            .intermediate_size = 4096,
                            .num_hidden_layers = 1,
                            .num_attention_heads = 16,
                            .image_size = 56,
                            .patch_size = 14,
                            .projection_dim = 768});
  EXPECT_LT(
      relative_difference(embeds_of(encoder, 2), TextFixture("clip_image_l14").tensor("embeds")),
      kInFp32);
}

TEST(ClipImageEncoderTest, SizesArePublished) {
  // CLIPModel's parameters less those of its text tower: ViT-B/32 151.28 - 63.17 - 0.26 (its
  // projection) million, ViT-L/14 427.62 - 123.06 - 0.59.
  for (const auto& [config, millions] :
       {std::pair{ClipImageConfig{}, 87.85}, std::pair{ClipImageConfig{.hidden_size = 1024,
                                             .intermediate_size = 4096,
                                             .num_hidden_layers = 24,
                                             .num_attention_heads = 16,
                                             .patch_size = 14,
                                             .projection_dim = 768},
                                                       303.97}}) {
    ClipImageEncoder encoder(config);
    int64_t count = 0;
    for (const auto& [path, parameter] : encoder.named_parameters()) {
      count += parameter->numel();
    }
    EXPECT_NEAR(static_cast<double>(count) / 1e6, millions, 0.01);
  }
}

TEST(ClipImageEncoderTest, EveryParameterGetsAGradient) {
  ClipImageEncoder encoder(tiny());
  const at::Tensor embeds = embeds_of(encoder, 2);
  torch::autograd::backward({embeds.pow(2).sum()}, {});
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    EXPECT_GT(parameter->grad.abs().max().item<double>(), 0.0) << path;
  }
}

TEST(ClipImageEncoderTest, WrongPicturesAndConfigsAreNamed) {
  ClipImageEncoder encoder(tiny());
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return encoder.forward(at::zeros({1, 3, 22, 20}));
                       }),
              AllOf(HasSubstr("22, 22"), HasSubstr("20")));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] { return ClipImageEncoder({.image_size = 8}).config().image_size; }),
              AllOf(HasSubstr("patch_size"), HasSubstr("got 32")));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] { return ClipImageEncoder({.num_attention_heads = 7}).blocks.size(); }),
              HasSubstr("got 7"));
}

}  // namespace clip_image_encoder_test
}  // namespace kinora::models
