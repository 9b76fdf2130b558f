#include "kinora/nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <vector>

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

TEST(LinearPartsTest, PartsOfOutputsAndInputsMakeTheWhole) {
  Linear linear(6, 5, Init::normal(1.0));
  linear.adapt({.rank = 2, .scale = 0.5});
  give_values(linear, at::kFloat);
  linear.set_number(7);
  EXPECT_EQ(linear.num_parts(), 1);
  const ops::LinearWeights whole = linear.parts().front();
  const at::Tensor x = normal({4, 6}, 1);
  const at::NoGradGuard no_grad;
  const auto of = [](const ops::LinearWeights& part, const at::Tensor& input) {
    at::Tensor y = at::linear(input, part.weight,
                              part.bias.defined() ? std::optional(part.bias) : std::nullopt);
    for (const ops::LowRankWeights& update : part.updates) {
      y.narrow(1, update.first_row, update.rows())
          .add_(at::linear(at::linear(input, update.a), update.b), update.scale);
    }
    return y;
  };
  const at::Tensor want = of(whole, x);

  linear.set_parts(Cut::Dim::kOutputs, {3, 2});
  EXPECT_EQ(linear.num_parts(), 2);
  std::vector<ops::LinearWeights> parts = linear.parts();
  EXPECT_EQ(parts[1].number, 8);
  EXPECT_EQ(parts[1].first_part, 7);
  EXPECT_LT((at::cat({of(parts[0], x), of(parts[1], x)}, 1) - want).abs().max().item<float>(),
            1e-5F);
  at::Tensor(parts[1].updates[0].b_grad).fill_(1.0);  // its own rows, of the parameter's gradient
  EXPECT_EQ(whole.updates[0].b_grad.sum().item<float>(), 4.0F);

  linear.set_parts(Cut::Dim::kInputs, {4, 2});
  parts = linear.parts();
  EXPECT_FALSE(parts[0].bias.defined());
  const at::Tensor sum = of(parts[0], x.narrow(1, 0, 4)) + of(parts[1], x.narrow(1, 4, 2));
  EXPECT_LT((sum - want).abs().max().item<float>(), 1e-5F);
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
