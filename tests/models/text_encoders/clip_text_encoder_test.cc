#include "kinora/models/text_encoders/clip_text_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/models/text_encoders/text_fixture.h"

namespace kinora::models {
namespace clip_text_encoder_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(ClipTextEncoderTest, SizesArePublished) {
  struct Row {
    const char* name;
    ClipTextConfig config;
    double millions;
  };
  // bigG with its projection, the others without. Stable Diffusion 2 has the first 23 of ViT-H/14's
  // 24 blocks.
  for (const Row& row :
       {Row{"ViT-B/32", {}, 63.17},
        Row{"ViT-L/14",
            {.hidden_size = 768, .intermediate_size = 3072, .num_attention_heads = 12},
            123.06},
        Row{"ViT-H/14",
            {.hidden_size = 1024,
            .intermediate_size = 4096,
            .num_hidden_layers = 23,
            .num_attention_heads = 16},
            340.39},
        Row{"bigG",
            {.hidden_size = 1280,
            .intermediate_size = 5120,
            .num_hidden_layers = 32,
            .num_attention_heads = 20,
            .projection_dim = 1280},
            694.66}}) {
    ClipTextEncoder encoder(row.config);
    int64_t count = 0;
    for (const auto& [path, parameter] : encoder.named_parameters()) {
      count += parameter->numel();
    }
    EXPECT_NEAR(static_cast<double>(count) / 1e6, row.millions, 0.006) << row.name;
  }
}

// All that follows the end does not change the state there.
TEST(ClipTextEncoderTest, PooledVectorIsOfTheFirstEnd) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"clip_old_end", "clip_projection"}) {
    const TextFixture fixture(name);
    const auto encoder = fixture.encoder();
    fixture.set_weights(*encoder);
    const at::Tensor once = encoder->encode({.ids = {3, 4, 47}, .lengths = {3}}).pooled;
    const at::Tensor padded = encoder->encode({.ids = {3, 4, 47, 5, 47}, .lengths = {5}}).pooled;
    EXPECT_LT(relative_difference(padded, once), 1e-5) << name;
  }
}

// A text of 21 + 5 tokens between two others.
TEST(ClipTextEncoderTest, PiecesOfALongTextAreEncodedByThemselves) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture("clip_projection");
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  EXPECT_EQ(encoder->piece(), 21);
  std::vector<int64_t> first(21, 5);
  first.back() = 47;
  const std::vector<int64_t> second = {3, 9, 8, 7, 47};
  std::vector<int64_t> all = {4, 47};
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  all.insert(all.end(), {6, 47});
  const TextStates out = encoder->encode({.ids = all, .lengths = {2, 26, 2}});
  EXPECT_EQ(out.lengths, (std::vector<int64_t>{2, 26, 2}));
  const TextStates of_first = encoder->encode({.ids = first, .lengths = {21}});
  const TextStates of_second = encoder->encode({.ids = second, .lengths = {5}});
  EXPECT_LT(relative_difference(out.states.slice(0, 2, 23), of_first.states), 1e-5);
  EXPECT_LT(relative_difference(out.states.slice(0, 23, 28), of_second.states), 1e-5);
  EXPECT_LT(relative_difference(out.pooled[1], of_first.pooled[0]), 1e-5);
  EXPECT_LT(relative_difference(out.pooled[2],
                                encoder->encode({.ids = {6, 47}, .lengths = {2}}).pooled[0]),
            1e-5);
}

TEST(ClipTextEncoderTest, WrongTextsAndConfigsAreNamed) {
  const TextFixture fixture("clip_projection");
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  std::vector<int64_t> ids(22, 5);
  ids.back() = 47;
  EXPECT_THAT(
      error_of(ErrorKind::kShape, [&] { return encoder->encode({.ids = ids, .lengths = {22}}); }),
      AllOf(HasSubstr("22 tokens"), HasSubstr("21 positions"), HasSubstr("got 5 at 20")));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return encoder->encode({.ids = {47, 3, 4}, .lengths = {1, 2}});
                       }),
              AllOf(HasSubstr("text 1"), HasSubstr("end token 47")));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [] { return ClipTextEncoder({.num_attention_heads = 7}).num_blocks(); }),
              AllOf(HasSubstr("512"), HasSubstr("got 7")));
}

}  // namespace clip_text_encoder_test
}  // namespace kinora::models
