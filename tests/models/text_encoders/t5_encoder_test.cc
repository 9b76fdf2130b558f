#include "kinora/models/text_encoders/t5_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/models/text_encoders/text_fixture.h"

namespace kinora::models {
namespace t5_encoder_test {

using testing::AllOf;
using testing::HasSubstr;

// wo's products are 2^15 times what they are otherwise, and leave fp16's range.
TEST(T5EncoderTest, NothingOverflowsInFp16) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture("t5_gated");
  const at::Tensor expected = fixture.tensor("large.states");
  for (const auto& [type, bound] : {std::pair{at::kFloat, 1e-5}, {at::kHalf, 4e-3}}) {
    T5Encoder encoder(fixture.t5());
    fixture.set_weights(encoder, type);
    for (const auto& block : encoder.blocks) {
      block->wo.weight.value.mul_(32768.0);
      ASSERT_TRUE(at::isfinite(block->wo.weight.value).all().item<bool>());
    }
    EXPECT_LT(relative_difference(encoder.encode(fixture.tokens()).states, expected), bound)
        << type;
  }
}

TEST(T5EncoderTest, ABlockOfXxlsWidthMatchesTransformers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture("t5_xxl_layer");
  T5Encoder encoder(fixture.t5());
  fixture.set_weights(encoder);
  const auto difference = [&] {
    return relative_difference(encoder.encode(fixture.tokens()).states, fixture.tensor("states"));
  };
  EXPECT_LT(difference(), 1e-5);
  std::vector<at::Tensor> exact;
  for (const TextLinear* linear : encoder.linears()) {
    exact.push_back(linear->weight.value);
  }
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    parameter->value = parameter->value.to(at::kBFloat16);
  }
  EXPECT_LT(difference(), 2e-2);
  // Weights of one size: a real row's largest is further from the rest, which costs int8 most.
  for (const auto& [format, bound] : {std::pair{EightBit::kInt8, 2e-2}, {EightBit::kFp8, 8e-2}}) {
    for (size_t i = 0; i < exact.size(); ++i) {
      encoder.linears()[i]->set_eight_bits(to_eight_bits(exact[i], format), at::kBFloat16);
    }
    EXPECT_LT(difference(), bound);
  }
}

class PaddedT5Test : public testing::TestWithParam<const char*> {};

// As a transformer trains its own encoder. What lies behind a text's end counts for nothing.
TEST_P(PaddedT5Test, StatesAndGradientsMatchTransformers) {
  const TextFixture fixture(GetParam());
  T5Encoder encoder(fixture.t5());
  fixture.set_weights(encoder);
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    parameter->value.set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
  const TextTokens tokens = fixture.tokens();
  const int64_t batch = std::ssize(tokens.lengths);
  const int64_t length = *std::max_element(tokens.lengths.begin(), tokens.lengths.end()) + 2;
  const at::Tensor ids = at::full({batch, length}, 3, at::kLong);
  const at::Tensor valid = at::zeros({batch, length}, at::kBool);
  int64_t row = 0;
  for (int64_t text = 0; text < batch; ++text) {
    for (int64_t i = 0; i < tokens.lengths[static_cast<size_t>(text)]; ++i, ++row) {
      ids[text][i] = tokens.ids[static_cast<size_t>(row)];
      valid[text][i] = true;
    }
  }
  const at::Tensor states =
      encoder.encode_padded(ids, valid, t5_distance_buckets(encoder.config(), length));
  const at::Tensor rows = states.flatten(0, 1).index({valid.flatten()});
  EXPECT_LT(relative_difference(rows.detach(), fixture.tensor("states")), 1e-5);
  torch::autograd::backward({(rows * formula_values("states", rows.sizes())).sum()}, {});
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    const at::Tensor expected = fixture.tensor("grad." + path);
    const double size = expected[0].item<double>();
    const at::Tensor grad = parameter->grad.to(at::kDouble);
    EXPECT_NEAR(grad.norm().item<double>(), size, 1e-4 * size) << path;
    EXPECT_NEAR((grad * formula_values(path, parameter->shape)).sum().item<double>(),
                expected[1].item<double>(), 1e-4 * size)
        << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PaddedT5Test, testing::Values("t5", "t5_gated", "umt5"),
                         [](const auto& info) { return std::string(info.param); });

// T5's code (Mesh TensorFlow) in the published sizes: 32 buckets up to distance 128.
TEST(T5EncoderTest, DistancesFallInTheirBuckets) {
  const int64_t length = 200;
  const at::Tensor buckets = t5_distance_buckets({}, length);
  EXPECT_EQ(buckets.size(0), 2 * length - 1);
  const auto bucket = [&](int64_t distance) {
    return buckets[distance + length - 1].item<int64_t>();
  };
  const std::map<int64_t, int64_t> expected = {
      {0, 0},   {1, 1},   {7, 7},   {8, 8},   {11, 8},  {12, 9},   {15, 9},   {16, 10}, {22, 10},
      {23, 11}, {32, 12}, {64, 14}, {90, 14}, {91, 15}, {127, 15}, {128, 15}, {199, 15}};
  for (const auto& [distance, number] : expected) {
    EXPECT_EQ(bucket(-distance), number) << distance;
    if (distance > 0) {
      EXPECT_EQ(bucket(distance), number + 16) << distance;
    }
  }
}

// 4.76 B (T5-XXL's encoder, as SD 3, PixArt and Open-Sora use it), 5.68 B (UMT5-XXL's).
TEST(T5EncoderTest, SizesArePublished) {
  const auto billions = [](const T5Config& config) {
    T5Encoder encoder(config);
    int64_t count = 0;
    for (const auto& [path, parameter] : encoder.named_parameters()) {
      count += parameter->numel();
    }
    return static_cast<double>(count) / 1e9;
  };
  T5Config xxl{.d_model = 4096,
               .d_ff = 10240,
               .num_layers = 24,
               .num_heads = 64,
               .activation = Activation::kGeluTanh,
               .is_gated = true};
  EXPECT_NEAR(billions(xxl), 4.762, 0.001);
  xxl.vocab_size = 256384;
  xxl.bias_in_every_block = true;
  EXPECT_NEAR(billions(xxl), 5.681, 0.001);
  EXPECT_NEAR(billions({}), 0.0353, 0.0001);  // T5-small's encoder
}

TEST(T5EncoderTest, BadConfigsAreNamed) {
  const auto error = [](const T5Config& config) {
    return error_of(ErrorKind::kConfig, [&] { return T5Encoder(config).num_blocks(); });
  };
  EXPECT_THAT(error({.relative_attention_num_buckets = 6}),
              AllOf(HasSubstr("multiple of 4"), HasSubstr("got 6")));
  EXPECT_THAT(error({.relative_attention_max_distance = 8}),
              AllOf(HasSubstr("above 8"), HasSubstr("got 8")));
}

}  // namespace t5_encoder_test
}  // namespace kinora::models
