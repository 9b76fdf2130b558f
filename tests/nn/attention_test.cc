#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "kinora/nn/cross_attention.h"
#include "kinora/nn/self_attention.h"
#include "tests/error_of.h"
#include "tests/nn/random_values.h"

namespace kinora::nn {
namespace attention_test {

constexpr int64_t kHidden = 24;
constexpr int64_t kHeads = 3;

double distance(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor exact = expected.detach().to(at::kDouble);
  return ((got.detach().to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

at::Tensor by_formula(const Linear& linear, const at::Tensor& x) {
  return at::matmul(x, linear.weight.value.t()) + linear.bias.value;
}

at::Tensor by_formula(const RmsNorm& norm, const at::Tensor& x) {
  return x / (x.pow(2).mean(-1, true) + 1e-6).sqrt() * norm.weight.value;
}

/// softmax(q k^T / sqrt(D)) v of [B, N or L, H, D]: [B, N, C].
at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor scores = at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1}));
  const at::Tensor weights = at::softmax(scores / std::sqrt(static_cast<double>(q.size(-1))), -1);
  return at::matmul(weights, v.transpose(1, 2)).transpose(1, 2).flatten(2);
}

/// Pairs as complex numbers, multiplied by exp(i angle).
at::Tensor turned(const at::Tensor& x, const at::Tensor& rotary) {
  const at::Tensor angle = rotary.unflatten(-1, {-1, 2}).select(-1, 0).unsqueeze(-2);
  const at::Tensor turn = at::polar(at::ones_like(angle), angle);
  return at::view_as_real(at::view_as_complex(x.unflatten(-1, {-1, 2}).contiguous()) * turn)
      .flatten(-2);
}

at::Tensor by_formula(const SelfAttention& attention, const SelfAttention::Options& options,
                      const at::Tensor& x, const at::Tensor& rotary) {
  const auto qkv = by_formula(attention.qkv, x).unflatten(-1, {3, kHeads, -1}).unbind(2);
  at::Tensor q = qkv[0];
  at::Tensor k = qkv[1];
  const auto turn = [&] {
    if (rotary.defined()) {
      q = turned(q, rotary);
      k = turned(k, rotary);
    }
  };
  if (options.norm_after_rotary) {
    turn();
  }
  if (options.qk_norm) {
    q = by_formula(*attention.q_norm, q);
    k = by_formula(*attention.k_norm, k);
  }
  if (!options.norm_after_rotary) {
    turn();
  }
  return by_formula(attention.proj, softmax_attention(q, k, qkv[2]));
}

/// Every angle twice, as SelfAttention takes them: [N, D].
at::Tensor angles(int64_t tokens, double speed) {
  return at::outer(at::arange(tokens, at::kDouble) * speed,
                   at::arange(1, kHidden / kHeads / 2 + 1, at::kDouble))
      .repeat_interleave(2, -1);
}

struct Case {
  const char* name;
  bool qk_norm;
  bool norm_after_rotary;
  enum { kNone, kShared, kPerSample } rotary;
};

class SelfAttentionTest : public testing::TestWithParam<Case> {
 protected:
  SelfAttention::Options options_{.hidden = kHidden,
                                  .heads = kHeads,
                                  .qk_norm = GetParam().qk_norm,
                                  .norm_after_rotary = GetParam().norm_after_rotary};
  [[nodiscard]] static at::Tensor rotary() {
    switch (GetParam().rotary) {
      case Case::kNone:
        return {};
      case Case::kShared:
        return angles(5, 0.3);
      case Case::kPerSample:
        return at::stack({angles(5, 0.3), angles(5, -0.7)});
    }
    return {};
  }
};

TEST_P(SelfAttentionTest, EqualsTheFormulaAndItsGradientsInDouble) {
  SelfAttention attention(options_);
  give_random_values(attention, at::kDouble);
  const at::Tensor upstream = normal({2, 5, kHidden}, 2).to(at::kDouble);
  std::vector<at::Tensor> leaves = {
      normal({2, 5, kHidden}, 1).to(at::kDouble).set_requires_grad(true)};
  for (const auto& [path, parameter] : attention.named_parameters()) {
    leaves.push_back(parameter->value);
  }
  const at::Tensor got = attention.forward(leaves[0], rotary());
  const at::Tensor expected = by_formula(attention, options_, leaves[0], rotary());
  EXPECT_LT(distance(got, expected), 1e-12);
  const auto gradients = torch::autograd::grad({got}, leaves, {upstream});
  const auto exact = torch::autograd::grad({expected}, leaves, {upstream});
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], exact[i], 1e-9, 1e-10)) << "leaf " << i;
  }
}

TEST_P(SelfAttentionTest, LowerPrecisionIsNearAndKeepsItsType) {
  SelfAttention attention(options_);
  give_random_values(attention, at::kFloat, 0.3);
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({2, 5, kHidden}, 1);
  const at::Tensor angle = rotary().defined() ? rotary().to(at::kFloat) : at::Tensor();
  const at::Tensor exact = attention.forward(x, angle);
  give_random_values(attention, at::kBFloat16, 0.3);
  const at::Tensor got = attention.forward(x, angle);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LT(distance(got, exact), 0.03);
}

INSTANTIATE_TEST_SUITE_P(Options, SelfAttentionTest,
                         testing::Values(Case{"plain", false, false, Case::kNone},
                                         Case{"normed", true, false, Case::kNone},
                                         Case{"turned", false, false, Case::kShared},
                                         Case{"normed_turned", true, false, Case::kShared},
                                         Case{"turned_normed_per_sample", true, true,
                                              Case::kPerSample}),
                         [](const auto& info) { return info.param.name; });

TEST(SelfAttentionPartsTest, RotatedProductsDependOnTheDifferenceOfPositions) {
  SelfAttention attention({.hidden = kHidden, .heads = kHeads});
  give_random_values(attention, at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({1, 5, kHidden}, 1).to(at::kDouble);
  const at::Tensor at_start = angles(105, 0.3).narrow(0, 0, 5);
  const at::Tensor later = angles(105, 0.3).narrow(0, 100, 5);
  const at::Tensor got = attention.forward(x, later);
  EXPECT_LT(distance(got, attention.forward(x, at_start)), 1e-11);
  EXPECT_GT(distance(got, attention.forward(x)), 1e-2);
}

TEST(SelfAttentionPartsTest, PartsOfTheHeadsNormAndRotateAlike) {
  SelfAttention attention({.hidden = kHidden, .heads = kHeads, .qk_norm = true});
  give_random_values(attention, at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor packed = normal({2, 5, 3, kHeads, kHidden / kHeads}, 1).to(at::kDouble);
  const at::Tensor whole = attention.norm_and_rotate(packed, angles(5, 0.3));
  EXPECT_TRUE(at::equal(attention.norm_and_rotate(packed.narrow(3, 1, 2), angles(5, 0.3)),
                        whole.narrow(3, 1, 2)));
  EXPECT_TRUE(at::equal(whole.select(2, 2), packed.select(2, 2))) << "values are left alone";
}

TEST(SelfAttentionPartsTest, NormsStartAtOneAndTheOutputAtZeroIfAsked) {
  SelfAttention attention(
      {.hidden = kHidden, .heads = kHeads, .qk_norm = true, .zero_output = true});
  EXPECT_EQ(attention.q_norm->weight.init.kind, Init::Kind::kOne);
  EXPECT_EQ(attention.q_norm->weight.shape, (std::vector<int64_t>{kHidden / kHeads}));
  EXPECT_EQ(attention.proj.weight.init.kind, Init::Kind::kZero);
}

TEST(CrossAttentionTest, EverySampleAttendsToItsOwnTokensOnly) {
  constexpr int64_t kTokens = 4;
  const std::vector<int64_t> lengths = {kTokens, 1, 0, 3};
  CrossAttention attention({.hidden = kHidden, .heads = kHeads});
  give_random_values(attention, at::kDouble);
  std::vector<at::Tensor> leaves = {
      normal({4, 5, kHidden}, 1).to(at::kDouble).set_requires_grad(true),
      normal({4, kTokens, kHidden}, 2).to(at::kDouble).set_requires_grad(true)};
  for (const auto& [path, parameter] : attention.named_parameters()) {
    leaves.push_back(parameter->value);
  }
  const at::Tensor got = attention.forward(leaves[0], leaves[1], at::tensor(lengths, at::kLong));
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < 4; ++b) {
    const at::Tensor x = leaves[0].narrow(0, b, 1);
    const int64_t length = lengths[static_cast<size_t>(b)];
    const at::Tensor q = by_formula(attention.q_linear, x).unflatten(-1, {kHeads, -1});
    const auto kv = by_formula(attention.kv_linear, leaves[1].narrow(0, b, 1).narrow(1, 0, length))
                        .unflatten(-1, {2, kHeads, -1})
                        .unbind(2);
    rows.push_back(
        by_formula(attention.proj, length == 0 ? x * 0.0 : softmax_attention(q, kv[0], kv[1])));
  }
  const at::Tensor expected = at::cat(rows);
  EXPECT_LT(distance(got, expected), 1e-12);
  const at::Tensor upstream = normal({4, 5, kHidden}, 3).to(at::kDouble);
  const auto gradients = torch::autograd::grad({got}, leaves, {upstream});
  const auto exact = torch::autograd::grad({expected}, leaves, {upstream});
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], exact[i], 1e-9, 1e-10)) << "leaf " << i;
  }
}

TEST(CrossAttentionTest, PaddingChangesNothing) {
  CrossAttention attention({.hidden = kHidden, .heads = kHeads});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    give_random_values(attention, type);
    const at::NoGradGuard no_grad;
    const at::Tensor x = normal({2, 5, kHidden}, 1);
    const at::Tensor lengths = at::tensor({0, 2}, at::kLong);
    at::Tensor text = normal({2, 4, kHidden}, 2);
    const at::Tensor before = attention.forward(x, text, lengths);
    text.select(0, 0).fill_(1e4);
    text.select(0, 1).narrow(0, 2, 2).fill_(1e4);
    EXPECT_TRUE(at::equal(attention.forward(x, text, lengths), before));
    EXPECT_TRUE(at::equal(before.select(0, 0), attention.proj.bias.value.expand({5, kHidden})));
  }
}

TEST(CrossAttentionTest, WrongShapesAreNamed) {
  CrossAttention attention({.hidden = kHidden, .heads = kHeads});
  give_random_values(attention, at::kFloat);
  const at::Tensor x = normal({2, 5, kHidden}, 1);
  const at::Tensor text = normal({3, 4, kHidden}, 2);
  EXPECT_NE(error_of(ErrorKind::kShape,
                     [&] {
                       return attention.forward(x, text, at::tensor({4, 4, 4}, at::kLong));
                     })
                .find("[3, 4, 24]"),
            std::string::npos);
}

TEST(RmsNormTest, ComputesInFp32AndKeepsTheType) {
  RmsNorm norm(8);
  give_random_values(norm, at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({3, 8}, 1) * 100.0;
  const at::Tensor exact = by_formula(norm, x.to(at::kDouble));
  EXPECT_LT(distance(norm.forward(x), exact), 1e-6);
  const at::Tensor rounded = x.to(at::kBFloat16);
  const at::Tensor got = norm.forward(rounded);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(got, norm.forward(rounded.to(at::kFloat)).to(at::kBFloat16)));
}

}  // namespace attention_test
}  // namespace kinora::nn
