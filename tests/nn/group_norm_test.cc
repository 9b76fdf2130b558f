#include "kinora/nn/group_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/group_norm.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/error_of.h"
#include "tests/nn/random_values.h"

namespace kinora::nn {
namespace group_norm_test {

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class GroupNormTest : public testing::TestWithParam<std::vector<int64_t>> {
 protected:
  GroupNormTest() { give_random_values(norm_, at::kFloat); }

  GroupNorm norm_{3, 6, 1e-5};
  at::Tensor x_ = normal(GetParam(), 1) * 2.0 + 3.0;
};

TEST_P(GroupNormTest, EqualsLibtorchsAndItsGradients) {
  x_.set_requires_grad(true);
  const at::Tensor upstream = normal(GetParam(), 2);
  torch::autograd::backward({(norm_.forward(x_) * upstream).sum()}, {});
  const at::Tensor x = x_.detach().clone().set_requires_grad(true);
  const at::Tensor weight = norm_.weight.value.detach().clone().set_requires_grad(true);
  const at::Tensor bias = norm_.bias.value.detach().clone().set_requires_grad(true);
  const at::Tensor expected = at::group_norm(x, 3, weight, bias, 1e-5);
  torch::autograd::backward({(expected * upstream).sum()}, {});
  EXPECT_LT(largest_difference(norm_.forward(x_), expected), 2e-6);
  EXPECT_LT(largest_difference(x_.grad(), x.grad()), 2e-5);
  EXPECT_LT(largest_difference(norm_.weight.value.grad(), weight.grad()), 2e-5);
  EXPECT_LT(largest_difference(norm_.bias.value.grad(), bias.grad()), 2e-5);
}

TEST_P(GroupNormTest, PiecesAddUpToTheWhole) {
  const at::NoGradGuard no_grad;
  const int64_t rows = x_.size(2);
  const at::Tensor first = x_.narrow(2, 0, 1);
  const at::Tensor rest = x_.narrow(2, 1, rows - 1);
  const at::Tensor sums = norm_.sums(first) + norm_.sums(rest);
  const int64_t elements = x_.numel() / (x_.size(0) * 3);
  const at::Tensor whole = norm_.forward(x_);
  EXPECT_LT(largest_difference(norm_.apply(rest, sums, elements), whole.narrow(2, 1, rows - 1)),
            1e-6);
}

TEST_P(GroupNormTest, StatisticsOfHalfPrecisionAreNotRounded) {
  const at::NoGradGuard no_grad;
  const at::Tensor half = (x_ + 30.0).to(at::kBFloat16);
  const at::Tensor got = norm_.forward(half);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  const at::Tensor exact = norm_.forward(half.to(at::kFloat));
  const at::Tensor rounding = (exact.to(at::kBFloat16) - exact).abs().max();
  EXPECT_LE(largest_difference(got, exact), rounding.item<double>() + 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GroupNormTest,
                         testing::Values(std::vector<int64_t>{2, 6, 5},
                                         std::vector<int64_t>{3, 6, 4, 7},
                                         std::vector<int64_t>{1, 6, 3, 4, 5}));

TEST(GroupNormMemoryTest, SiluInPlaceEqualsSiluElsewhere) {
  const at::NoGradGuard no_grad;
  GroupNorm norm(2, 4);
  give_random_values(norm, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = normal({2, 4, 3, 5}, 1).to(type);
    const at::Tensor sums = norm.sums(x);
    const at::Tensor expected = norm.apply_silu(x, sums, 30);
    const at::Tensor written = norm.apply_silu(x, sums, 30, /*overwrite=*/true);
    EXPECT_EQ(written.const_data_ptr(), x.const_data_ptr());
    EXPECT_LT(largest_difference(x, expected), 1e-6);
  }
}

TEST(GroupNormLayoutTest, ChannelsLastStays) {
  GroupNorm norm(2, 4);
  give_random_values(norm, at::kBFloat16);
  const at::NoGradGuard no_grad;
  const at::Tensor x =
      normal({2, 4, 3, 5}, 1).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(norm.forward(x).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(GroupNormErrorTest, WrongShapesAreNamed) {
  EXPECT_NE(error_of(ErrorKind::kConfig, [] { return GroupNorm(4, 6).groups(); })
                .find("must divide the channels 6, got 4"),
            std::string::npos);
  const GroupNorm norm(2, 4);
  EXPECT_NE(error_of(ErrorKind::kShape,
                     [&] {
                       return norm.forward(normal({2, 6, 3}, 1));
                     })
                .find("[B, 4, ...], got [2, 6, 3]"),
            std::string::npos);
}

}  // namespace group_norm_test
}  // namespace kinora::nn
