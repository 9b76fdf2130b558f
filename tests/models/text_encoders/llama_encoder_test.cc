#include "kinora/models/text_encoders/llama_encoder.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "kinora/models/text_encoders/encoder_with_clips.h"
#include "tests/error_of.h"
#include "tests/models/text_encoders/text_fixture.h"

// text_encoder_test.cc has what all encoders are to do.
namespace kinora::models {
namespace llama_encoder_test {

using testing::HasSubstr;

TEST(LlamaEncoderTest, StatesTwoBlocksBeforeTheLastMatchTransformers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture("llama");
  LlamaEncoder encoder(fixture.llama());
  fixture.set_weights(encoder);
  const TextStates out = encoder.encode(fixture.tokens(), {.before_last = 2, .normed = false});
  EXPECT_LT(relative_difference(out.states, fixture.tensor("two_before_last")), 1e-5);
}

TEST(LlamaEncoderTest, SizesArePublished) {
  LlamaEncoder encoder({.vocab_size = 128256,
                        .hidden_size = 4096,
                        .intermediate_size = 14336,
                        .num_hidden_layers = 32,
                        .num_attention_heads = 32,
                        .num_key_value_heads = 8});
  int64_t count = 0;
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    count += parameter->numel();
  }
  // LLaMA 3 8B's, without the 128,256 x 4,096 of what predicts a token.
  EXPECT_EQ(count, 8'030'261'248 - int64_t{128256} * 4096);
}

TEST(LlamaEncoderTest, HeadsThatDoNotFitAreNamed) {
  const auto refused = [](const LlamaConfig& config) {
    return error_of(ErrorKind::kConfig, [&] { return LlamaEncoder(config).num_blocks(); });
  };
  EXPECT_THAT(refused({.num_attention_heads = 6, .num_key_value_heads = 4}),
              HasSubstr("num_attention_heads must be a multiple of num_key_value_heads"));
  EXPECT_THAT(refused({.head_dim = 5}), HasSubstr("head_dim even, got 32, 32 and 5"));
}

// As HunyuanVideo's: a CLIP behind it, and the first tokens have no state.
TEST(LlamaEncoderTest, AFrameLeavesItsTokensOut) {
  const at::NoGradGuard no_grad;
  const TextFixture llama("llama");
  const TextFixture clip("clip_old_end");
  EncoderWithClips joint({clip.clip()}, std::make_unique<LlamaEncoder>(llama.llama()), 0,
                         CaptionFrame{.before = "a b", .behind = "c", .tokens = 2});
  LlamaEncoder alone(llama.llama());
  ClipTextEncoder pooling(clip.clip());
  llama.set_weights(alone);
  clip.set_weights(pooling);
  for (const auto& [path, parameter] : joint.named_parameters()) {
    const bool is_llama = path.starts_with("text_encoder.");
    const std::string own = path.substr(path.find('.') + 1);
    parameter->value = (is_llama ? llama : clip).weight(own, parameter->shape);
  }
  EXPECT_EQ(joint.kind(), "Llama and CLIP");
  EXPECT_EQ(joint.beside().tokens, 21);
  EXPECT_EQ(joint.num_states(24), 1);
  EXPECT_EQ(joint.block_path(0), "text_encoder.layers.0.");
  EXPECT_EQ(joint.block_path(4), "text_encoder_2.text_model.encoder.layers.0.");

  TextTokens both;
  TextTokens of_llama;
  TextTokens of_clip;
  for (const int64_t length : {5, 3}) {
    for (int64_t i = 0; i < length; ++i) {
      both.ids.push_back(3 + i * length);
      of_llama.ids.push_back(both.ids.back());
    }
    of_llama.lengths.push_back(length);
    for (int64_t i = 0; i < 21; ++i) {
      both.ids.push_back(i < 4 ? 7 + i : 47);
      of_clip.ids.push_back(both.ids.back());
    }
    of_clip.lengths.push_back(21);
    both.lengths.push_back(length + 21);
  }
  const TextStates got = joint.encode(both);
  const at::Tensor states = alone.encode(of_llama).states;
  EXPECT_EQ(got.lengths, (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(got.states.narrow(0, 0, 3).equal(states.narrow(0, 2, 3)));
  EXPECT_TRUE(got.states.narrow(0, 3, 1).equal(states.narrow(0, 7, 1)));
  EXPECT_TRUE(got.pooled.equal(pooling.encode(of_clip).pooled));

  both.ids.resize(26 - 3);
  both.lengths = {23};
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return joint.encode(both).lengths; }),
              HasSubstr("more than the 21 tokens of CLIPs and 2 that are left out, got 23"));
}

}  // namespace llama_encoder_test
}  // namespace kinora::models
