#include "kinora/models/text_encoders/ragged_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "tests/error_of.h"
#include "tests/models/formula_values.h"

namespace kinora::models {
namespace ragged_attention_test {

using testing::HasSubstr;

const std::vector<int64_t> kLengths = {3, 9, 1, 3, 7, 8};
constexpr int64_t kRows = 31;
constexpr int64_t kHeads = 2;
constexpr int64_t kChannels = 4;
constexpr int64_t kLongest = 11;  // what the bias is for: more than the texts need

struct Inputs {
  at::Tensor q, k, v, bias;
};

Inputs inputs() {
  const auto values = [](const char* name, at::IntArrayRef shape) {
    return formula_values(name, shape).to(at::kDouble).set_requires_grad(true);
  };
  return {values("q", {kRows, kHeads, kChannels}), values("k", {kRows, kHeads, kChannels}),
          values("v", {kRows, kHeads, kChannels}), values("bias", {kHeads, 2 * kLongest - 1})};
}

/// The definition, text by text, score by score.
at::Tensor expected(const Inputs& in, double scale, bool causal, bool biased) {
  std::vector<at::Tensor> texts;
  int64_t begin = 0;
  for (const int64_t length : kLengths) {
    const auto part = [&](const at::Tensor& x) {
      return x.slice(0, begin, begin + length).transpose(0, 1);  // [H, L, D]
    };
    at::Tensor scores = part(in.q).matmul(part(in.k).transpose(1, 2)) * scale;
    const at::Tensor added = at::zeros({kHeads, length, length}, at::kDouble);
    std::vector<at::Tensor> queries;
    for (int64_t i = 0; i < length; ++i) {
      at::Tensor row = scores.select(1, i);
      if (biased) {
        row = row + in.bias.slice(1, kLongest - 1 - i, kLongest - 1 - i + length);
      }
      if (causal) {
        row = row.slice(1, 0, i + 1);
      }
      const at::Tensor weights = row.softmax(-1).unsqueeze(1);  // [H, 1, seen]
      queries.push_back(weights.matmul(part(in.v).slice(1, 0, weights.size(2))).flatten());
    }
    texts.push_back(at::stack(queries));
    begin += length;
  }
  return at::cat(texts);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// unit 1 pads nothing, 4 pads some, 16 computes all texts at once.
class RaggedAttentionTest : public testing::TestWithParam<int64_t> {};

TEST_P(RaggedAttentionTest, OutputsAndGradientsAreThoseOfTheDefinition) {
  const RaggedRows rows(kLengths, at::kCPU, GetParam());
  EXPECT_EQ(rows.size(), kRows);
  for (const bool causal : {false, true}) {
    for (const bool biased : {false, true}) {
      if (causal && biased) {
        continue;
      }
      SCOPED_TRACE(causal ? "causal" : biased ? "biased" : "plain");
      const auto gradients = [&](const Inputs& in, const at::Tensor& out) {
        torch::autograd::backward({(out * formula_values("cotangent", out.sizes())).sum()}, {});
        std::vector<at::Tensor> result = {in.q.grad(), in.k.grad(), in.v.grad()};
        if (biased) {
          result.push_back(in.bias.grad());
        }
        return result;
      };
      const Inputs in = inputs();
      const at::Tensor out = ragged_attention(
          in.q, in.k, in.v, rows,
          {.scale = 0.7, .causal = causal, .distance_bias = biased ? in.bias : at::Tensor()});
      const Inputs other = inputs();
      const at::Tensor wanted = expected(other, 0.7, causal, biased);
      EXPECT_LT(difference(out, wanted), 1e-12);
      const std::vector<at::Tensor> ours = gradients(in, out);
      const std::vector<at::Tensor> theirs = gradients(other, wanted);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_LT(difference(ours[i], theirs[i]), 1e-12) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Units, RaggedAttentionTest, testing::Values(1, 4, 16),
                         [](const auto& info) { return "unit" + std::to_string(info.param); });

TEST(RaggedRowsTest, NothingIsPaddedWithUnitOne) {
  const RaggedRows rows(kLengths, at::kCPU, 1);
  int64_t computed = 0;
  for (const RaggedRows::Group& group : rows.groups()) {
    EXPECT_FALSE(group.valid.defined());
    computed += group.count * group.length;
  }
  EXPECT_EQ(computed, kRows);
  EXPECT_EQ(rows.groups().size(), 5U);  // 1, 3 (twice), 7, 8, 9
}

TEST(RaggedRowsTest, GroupsOfLongTextsAreSmall) {
  const RaggedRows rows(std::vector<int64_t>(9, 1024), at::kCPU, 1);
  EXPECT_EQ(rows.groups().size(), 5U);  // two of 2^20 scores at once
}

TEST(RaggedRowsTest, WrongShapesAreNamed) {
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [] {
                         return RaggedRows({2, 0}, at::kCPU, 1).size();
                       }),
              HasSubstr("got 0 for text 1"));
  const RaggedRows rows({2, 3}, at::kCPU, 1);
  const at::Tensor x = at::zeros({5, 2, 4});
  const auto error = [&](const at::Tensor& q, const RaggedAttentionOptions& options) {
    return error_of(ErrorKind::kShape, [&] { return ragged_attention(q, x, x, rows, options); });
  };
  EXPECT_THAT(error(at::zeros({4, 2, 4}), {}), HasSubstr("[4, 2, 4]"));
  EXPECT_THAT(error(x, {.distance_bias = at::zeros({2, 3})}), HasSubstr("got [2, 3]"));
  EXPECT_THAT(error(x, {.distance_bias = at::zeros({3, 5})}), HasSubstr("got [3, 5]"));
  EXPECT_THAT(error(x, {.causal = true, .distance_bias = at::zeros({2, 5})}),
              HasSubstr("no causal mask"));
}

}  // namespace ragged_attention_test
}  // namespace kinora::models
