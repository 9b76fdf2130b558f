#include "kinora/models/text_encoders/text_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <set>

#include "kinora/optim/arena.h"
#include "tests/error_of.h"
#include "tests/models/text_encoders/text_fixture.h"

namespace kinora::models {
namespace text_encoder_test {

using testing::AllOf;
using testing::HasSubstr;

// The bounds.
constexpr double kInFp32 = 1e-5;
constexpr double kGradients = 1e-4;
constexpr double kInBf16 = 2e-2;
constexpr double kInFp16 = 2.5e-3;  // an eighth of bf16's

class TextEncoderTest : public testing::TestWithParam<const char*> {};

TEST_P(TextEncoderTest, StatesMatchTransformers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  const TextStates out = encoder->encode(fixture.tokens());
  EXPECT_LT(relative_difference(out.states, fixture.tensor("states")), kInFp32);
  EXPECT_EQ(out.lengths, fixture.tokens().lengths);
  EXPECT_EQ(out.pooled.defined(), fixture.has("pooled"));
  if (out.pooled.defined()) {
    EXPECT_LT(relative_difference(out.pooled, fixture.tensor("pooled")), kInFp32);
    EXPECT_EQ(out.pooled.size(1), encoder->pooled_width());
  }
}

TEST_P(TextEncoderTest, PaddingIsAttendedToWhereItIsGiven) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  const at::Tensor expected = fixture.tensor("padded.states");
  const TextStates out = encoder->encode(fixture.padded_tokens());
  EXPECT_LT(relative_difference(padded_states(out), expected), kInFp32);
}

TEST_P(TextEncoderTest, StatesBeforeTheLastBlockMatchTransformers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  const TextLayer layer{.before_last = 1, .normed = false};
  EXPECT_LT(relative_difference(encoder->encode(fixture.tokens(), layer).states,
                                fixture.tensor("before_last")),
            kInFp32);
}

TEST_P(TextEncoderTest, SixteenBitsStayNearTransformersInDouble) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  for (const auto& [type, bound] : {std::pair{at::kBFloat16, kInBf16}, {at::kHalf, kInFp16}}) {
    const auto encoder = fixture.encoder();
    fixture.set_weights(*encoder, type);
    const TextStates out = encoder->encode(fixture.tokens());
    EXPECT_EQ(out.states.scalar_type(), at::kFloat);
    EXPECT_LT(relative_difference(out.states, fixture.tensor("states")), bound) << type;
    if (out.pooled.defined()) {
      EXPECT_LT(relative_difference(out.pooled, fixture.tensor("pooled")), bound) << type;
    }
  }
}

TEST_P(TextEncoderTest, GradientsMatchTransformers) {
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    parameter->value.set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
  const TextStates out = encoder->encode(fixture.tokens());
  at::Tensor loss = (out.states * formula_values("states", out.states.sizes())).sum();
  if (out.pooled.defined()) {
    loss = loss + (out.pooled * formula_values("pooled", out.pooled.sizes())).sum();
  }
  torch::autograd::backward({loss}, {});
  double whole = 0.0;
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    whole = std::max(whole, fixture.tensor("grad." + path)[0].item<double>());
  }
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    const at::Tensor expected = fixture.tensor("grad." + path);
    const at::Tensor grad = parameter->grad.to(at::kDouble);
    // Keys' biases have no gradient but what rounding leaves.
    const double size = std::max(expected[0].item<double>(), 1e-3 * whole);
    EXPECT_NEAR(grad.norm().item<double>(), expected[0].item<double>(), kGradients * size) << path;
    const at::Tensor probe = formula_values(path, parameter->shape);
    EXPECT_NEAR((grad * probe).sum().item<double>(), expected[1].item<double>(), kGradients * size)
        << path;
  }
}

TEST_P(TextEncoderTest, ATextAloneIsTheSameAsAmongOthers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  const TextTokens all = fixture.tokens();
  const at::Tensor together = encoder->encode(all).states;
  int64_t row = 0;
  for (const int64_t length : all.lengths) {
    const TextTokens alone{.ids = {all.ids.begin() + row, all.ids.begin() + row + length},
                           .lengths = {length}};
    EXPECT_LT(
        relative_difference(encoder->encode(alone).states, together.slice(0, row, row + length)),
        kInFp32);
    row += length;
  }
}

TEST_P(TextEncoderTest, EightBitsStayNear) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  // fp8 rounds a weight 128 times as coarsely as fp16 does, whose bound is 2.5e-3 for weights and
  // activations; int8 lies between them.
  for (const auto& [format, bound] :
       {std::pair{EightBit::kInt8, 3.5e-2}, {EightBit::kFp8, 1.3e-1}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto encoder = fixture.encoder();
      fixture.set_weights(*encoder, type);
      for (TextLinear* linear : encoder->linears()) {
        linear->set_eight_bits(to_eight_bits(linear->weight.value, format), type);
        EXPECT_EQ(linear->weight.value.element_size(), 1);
      }
      const double difference =
          relative_difference(encoder->encode(fixture.tokens()).states, fixture.tensor("states"));
      EXPECT_LT(difference, bound) << type;
      EXPECT_GT(difference, 1e-4) << type;
    }
  }
}

TEST_P(TextEncoderTest, ArenaHoldsEveryParameterOnceAndTrainsIt) {
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  const std::vector<nn::BucketSpec> buckets = encoder->buckets();
  EXPECT_EQ(static_cast<int64_t>(buckets.size()), encoder->num_blocks() + 2);
  std::multiset<std::string> in_buckets;
  for (const nn::BucketSpec& bucket : buckets) {
    in_buckets.insert(bucket.parameters.begin(), bucket.parameters.end());
  }
  std::multiset<std::string> in_encoder;
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    in_encoder.insert(path);
  }
  EXPECT_EQ(in_buckets, in_encoder);

  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto trained = fixture.encoder();
    const optim::Arena arena(trained->named_parameters(), trained->buckets(),
                             {.compute_type = type, .train = true, .ema_decays = {}});
    const at::Tensor states = trained->encode(fixture.tokens()).states;
    torch::autograd::backward({states.pow(4).sum()}, {});
    for (const auto& [path, parameter] : trained->named_parameters()) {
      const double norm = parameter->grad.norm().item<double>();
      EXPECT_TRUE(std::isfinite(norm)) << path;
      EXPECT_TRUE(norm > 0.0 || path == "text_projection.weight") << path;
    }
  }
}

TEST_P(TextEncoderTest, TapsSeeEveryBlock) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  std::set<std::string> seen;
  encoder->set_tap([&](const std::string& path, const at::Tensor& output) {
    seen.insert(path);
    return output;
  });
  static_cast<void>(encoder->encode(fixture.tokens()));
  for (int64_t i = 0; i < encoder->num_blocks(); ++i) {
    const std::string path = encoder->block_path(i);
    EXPECT_TRUE(seen.contains(path.substr(0, path.size() - 1))) << path;
  }
}

TEST_P(TextEncoderTest, WrongTokensAreNamed) {
  const TextFixture fixture(GetParam());
  const auto encoder = fixture.encoder();
  fixture.set_weights(*encoder);
  const auto error = [&](TextTokens tokens, TextLayer layer = {}) {
    return error_of(ErrorKind::kShape, [&] { return encoder->encode(tokens, layer); });
  };
  EXPECT_THAT(error({.ids = {3, 48, 47}, .lengths = {3}}),
              AllOf(HasSubstr("0 to 47"), HasSubstr("48 in text 0")));
  EXPECT_THAT(error({.ids = {3, -1, 47}, .lengths = {3}}), HasSubstr("got -1"));
  EXPECT_THAT(error({}), HasSubstr("at least one text"));
  EXPECT_THAT(error({.ids = {47}, .lengths = {1, 0}}), HasSubstr("text 1"));
  EXPECT_THAT(error({.ids = {47}, .lengths = {2}}), HasSubstr("2 ids or more"));
  EXPECT_THAT(error({.ids = {47, 47}, .lengths = {1}}), HasSubstr("1 ids"));
  const std::vector<int64_t> many(kMostTokens + 1, 47);
  EXPECT_THAT(error({.ids = many, .lengths = {kMostTokens + 1}}), HasSubstr("4097"));
  const int64_t blocks = encoder->num_blocks();
  EXPECT_THAT(error({.ids = {47}, .lengths = {1}}, {.before_last = blocks}),
              HasSubstr("0 to " + std::to_string(blocks - 1)));
  EXPECT_THAT(error({.ids = {47}, .lengths = {1}}, {.before_last = -1}), HasSubstr("got -1"));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TextEncoderTest,
                         testing::Values("t5", "t5_gated", "umt5", "clip_old_end",
                                         "clip_projection", "llama", "ldm_bert"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TextStatesTest, PaddingIsZeros) {
  const at::Tensor rows = formula_values("rows", {5, 2});
  const TextStates states{.states = rows, .lengths = {2, 3}, .pooled = {}};
  const at::Tensor padded = padded_states(states, 4);
  EXPECT_EQ(padded.sizes(), at::IntArrayRef({2, 4, 2}));
  EXPECT_TRUE(padded[0].slice(0, 0, 2).equal(rows.slice(0, 0, 2)));
  EXPECT_TRUE(padded[1].slice(0, 0, 3).equal(rows.slice(0, 2, 5)));
  EXPECT_TRUE(padded[0].slice(0, 2, 4).equal(at::zeros({2, 2})));
  EXPECT_TRUE(padded[1].slice(0, 3, 4).equal(at::zeros({1, 2})));
  EXPECT_EQ(padded_states(states).size(1), 3);
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return padded_states(states, 2); }),
              AllOf(HasSubstr("3 or more"), HasSubstr("got 2")));
}

TEST(TextTokensTest, TextsAreAddedOneAfterTheOther) {
  TextTokens tokens;
  tokens.add(std::vector<int32_t>{5, 6});
  tokens.add(std::vector<int32_t>{7});
  EXPECT_EQ(tokens.ids, (std::vector<int64_t>{5, 6, 7}));
  EXPECT_EQ(tokens.lengths, (std::vector<int64_t>{2, 1}));
}

}  // namespace text_encoder_test
}  // namespace kinora::models
