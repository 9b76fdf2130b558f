// Attention part by part against libtorch's attention to all keys at once, and its autograd.
#include "kinora/ops/partial_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace partial_attention_test {

struct Inputs {
  at::Tensor q = normal({2, 5, 3, 8}, 1, at::kDouble);
  at::Tensor k = normal({2, 11, 3, 8}, 2, at::kDouble);
  at::Tensor v = normal({2, 11, 3, 8}, 3, at::kDouble);
  at::Tensor gradient = normal({2, 5, 3, 8}, 4, at::kDouble);
};

at::Tensor whole_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
      .transpose(1, 2);
}

Attended attend_in_parts(const Inputs& inputs, const std::vector<int64_t>& lengths) {
  Attended seen;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    merge(&seen,
          attend(inputs.q, inputs.k.narrow(1, first, length), inputs.v.narrow(1, first, length)));
    first += length;
  }
  return seen;
}

TEST(PartialAttentionTest, PartsMakeTheWholeForwardAndBackward) {
  const Inputs inputs;
  const at::Tensor q = inputs.q.detach().clone().requires_grad_();
  const at::Tensor k = inputs.k.detach().clone().requires_grad_();
  const at::Tensor v = inputs.v.detach().clone().requires_grad_();
  const at::Tensor expected = whole_attention(q, k, v);
  expected.backward(inputs.gradient);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{11}, {1, 10}, {4, 4, 3}, {3, 1, 1, 6}}) {
    const Attended all = attend_in_parts(inputs, lengths);
    EXPECT_LT(relative_error(all.out, expected), 1e-14);
    at::Tensor to_q = at::zeros_like(inputs.q);
    std::vector<at::Tensor> to_k;
    std::vector<at::Tensor> to_v;
    int64_t first = 0;
    for (const int64_t length : lengths) {
      const AttendGradients part =
          attend_backward(inputs.gradient, inputs.q, inputs.k.narrow(1, first, length),
                          inputs.v.narrow(1, first, length), all);
      to_q += part.q;
      to_k.push_back(part.k);
      to_v.push_back(part.v);
      first += length;
    }
    EXPECT_LT(relative_error(to_q, q.grad()), 1e-14);
    EXPECT_LT(relative_error(at::cat(to_k, 1), k.grad()), 1e-14);
    EXPECT_LT(relative_error(at::cat(to_v, 1), v.grad()), 1e-14);
  }
}

TEST(PartialAttentionTest, HalfTypesAccumulateInFp32) {
  Inputs inputs;
  const at::Tensor expected = whole_attention(inputs.q, inputs.k, inputs.v);
  inputs.q = inputs.q.to(at::kBFloat16);
  inputs.k = inputs.k.to(at::kBFloat16);
  inputs.v = inputs.v.to(at::kBFloat16);
  const Attended all = attend_in_parts(inputs, {4, 4, 3});
  EXPECT_EQ(all.out.scalar_type(), at::kFloat);
  EXPECT_EQ(all.log_normaliser.scalar_type(), at::kFloat);
  EXPECT_LT(relative_error(all.out, expected), 2e-2);  // inputs of 8 bits
}

// exp(1e4) is far beyond fp32: what one part weighs against the other must be found without it.
TEST(PartialAttentionTest, LogitsMayLieFarApart) {
  const at::Tensor q = at::full({1, 2, 1, 1}, 1.0, at::kFloat);
  const auto part = [&](double logit, double value) {
    return attend(q, at::full({1, 3, 1, 1}, logit, at::kFloat),
                  at::full({1, 3, 1, 1}, value, at::kFloat));
  };
  for (const double distance : {1e4, 1e30}) {
    for (const bool larger_first : {false, true}) {
      Attended seen;
      merge(&seen, larger_first ? part(distance, 5.0) : part(-distance, -7.0));
      merge(&seen, larger_first ? part(-distance, -7.0) : part(distance, 5.0));
      EXPECT_TRUE(at::equal(seen.out, at::full({1, 2, 1, 1}, 5.0, at::kFloat)));
      EXPECT_TRUE(at::allclose(seen.log_normaliser,
                               at::full({1, 1, 2}, distance + std::log(3.0), at::kFloat), 1e-7,
                               0.0));
    }
  }
  // Equal ones share: the mean of both values, however large the logits.
  Attended seen;
  merge(&seen, part(1e4, 1.0));
  merge(&seen, part(1e4, 2.0));
  EXPECT_TRUE(at::allclose(seen.out, at::full({1, 2, 1, 1}, 1.5, at::kFloat), 0.0, 1e-6));
}

TEST(PartialAttentionTest, OrderOfPartsChangesRoundingOnly) {
  Inputs inputs;
  const Attended forward = attend_in_parts(inputs, {4, 7});
  inputs.k = at::cat({inputs.k.narrow(1, 4, 7), inputs.k.narrow(1, 0, 4)}, 1);
  inputs.v = at::cat({inputs.v.narrow(1, 4, 7), inputs.v.narrow(1, 0, 4)}, 1);
  const Attended backward = attend_in_parts(inputs, {7, 4});
  EXPECT_LT(relative_error(forward.out, backward.out), 1e-15);
}

}  // namespace partial_attention_test
}  // namespace kinora::ops
