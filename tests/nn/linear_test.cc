#include "kinora/nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/nn/random_values.h"

namespace kinora::nn {
namespace linear_test {

void give_values(Linear& linear, at::ScalarType type) {
  int64_t number = 10;
  for (const auto& [path, parameter] : linear.named_parameters()) {
    parameter->value = normal(parameter->shape, number++).to(type).set_requires_grad(true);
    parameter->grad = at::zeros(parameter->shape, at::kFloat);
  }
}

class LinearTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(LinearTest, EqualsLibtorchsAndItsGradients) {
  Linear linear(5, 3, Init::normal(1.0));
  give_values(linear, GetParam());
  const at::Tensor x = normal({2, 7, 5}, 1).to(GetParam()).set_requires_grad(true);
  const at::Tensor upstream = normal({2, 7, 3}, 2).to(GetParam());

  const at::Tensor x_plain = x.detach().clone().set_requires_grad(true);
  const at::Tensor weight = linear.weight.value.detach().clone().set_requires_grad(true);
  const at::Tensor bias = linear.bias.value.detach().clone().set_requires_grad(true);
  const at::Tensor expected = at::linear(x_plain, weight, bias);
  torch::autograd::backward({(expected * upstream).sum()}, {});

  const at::Tensor got = linear.forward(x);
  torch::autograd::backward({(got * upstream).sum()}, {});
  EXPECT_TRUE(at::equal(got, expected));
  EXPECT_TRUE(at::equal(x.grad(), x_plain.grad()));
  EXPECT_TRUE(at::equal(linear.weight.grad, weight.grad().to(at::kFloat)));
  EXPECT_TRUE(at::equal(linear.bias.grad, bias.grad().to(at::kFloat)));
}

INSTANTIATE_TEST_SUITE_P(Types, LinearTest, testing::Values(at::kFloat, at::kBFloat16));

TEST(LinearTypeTest, InputIsConvertedToTheWeights) {
  Linear linear(4, 2, Init::zero());
  give_values(linear, at::kBFloat16);
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({3, 4}, 1);
  const at::Tensor got = linear.forward(x);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(got, linear.forward(x.to(at::kBFloat16))));
}

TEST(LinearTypeTest, DeclaresShapesAndStart) {
  const Linear linear(4, 2, Init::normal(0.02), {.fp32_island = true});
  EXPECT_EQ(linear.weight.shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(linear.bias.shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(linear.weight.init.kind, Init::Kind::kNormal);
  EXPECT_EQ(linear.bias.init.kind, Init::Kind::kZero);
  EXPECT_TRUE(linear.weight.fp32_island);
  EXPECT_TRUE(linear.bias.fp32_island);
  EXPECT_FALSE(linear.weight.value.defined()) << "storage comes later";
  EXPECT_EQ(linear.weight.numel(), 8);
}

}  // namespace linear_test
}  // namespace kinora::nn
