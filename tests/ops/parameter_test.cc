#include "kinora/ops/parameter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinora/core/error.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace parameter_test {

void backward(const at::Tensor& scalar) {
  torch::autograd::backward({scalar}, {});
}

// In bf16 a sum of ones ends at 256.
TEST(WithGradientTest, AccumulatesInFp32WhateverTheValuesType) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor value = at::ones({3}, type).set_requires_grad(true);
    at::Tensor gradient = at::zeros({3}, at::kFloat);
    for (int pass = 0; pass < 3000; ++pass) {
      backward(with_gradient(value, gradient).sum());
    }
    EXPECT_TRUE(at::equal(gradient, at::ones({3}) * 3000)) << type;
    EXPECT_FALSE(value.grad().defined()) << "the gradient has one home";
  }
}

TEST(WithGradientTest, AddsInPlaceToWhatIsThere) {
  const at::Tensor value = normal({4, 5}, 1).set_requires_grad(true);
  const at::Tensor factor = normal({4, 5}, 2);
  at::Tensor bucket = at::ones({40});
  const at::Tensor gradient = bucket.narrow(0, 10, 20).view({4, 5});
  const at::Tensor used = with_gradient(value, gradient);
  EXPECT_TRUE(at::equal(used.detach(), value.detach()));
  backward((used * factor).sum() + (used * 2.0).sum());
  EXPECT_TRUE(at::equal(gradient, factor + 3.0));
  EXPECT_TRUE(at::equal(bucket.narrow(0, 0, 10), at::ones({10})));
  EXPECT_TRUE(at::equal(bucket.narrow(0, 30, 10), at::ones({10})));
}

TEST(WithGradientTest, MatchesFiniteDifferences) {
  const at::Tensor value = normal({3, 4}, 1, at::kDouble).set_requires_grad(true);
  at::Tensor gradient = at::zeros({3, 4}, at::kDouble);
  backward(with_gradient(value, gradient).sin().square().sum());
  const at::Tensor direction = normal({3, 4}, 2, at::kDouble);
  EXPECT_NEAR((gradient * direction).sum().item<double>(),
              finite_difference([](const at::Tensor& x) { return x.sin().square().sum(); }, value,
                                direction),
              1e-8);
}

TEST(WithGradientTest, IsTheValueItselfWhereNothingIsRecorded) {
  const at::Tensor value = normal({2}, 1).set_requires_grad(true);
  const at::Tensor gradient = at::zeros({2});
  EXPECT_TRUE(with_gradient(value, at::Tensor()).is_same(value));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(with_gradient(value, gradient).is_same(value));
}

TEST(WithGradientTest, ShapesMustAgree) {
  const at::Tensor value = normal({2, 3}, 1).set_requires_grad(true);
  EXPECT_THROW((void)with_gradient(value, at::zeros({3, 2})), Error);
}

}  // namespace parameter_test
}  // namespace kinora::ops
