#include "kinora/nn/conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinora/device/dry_run.h"
#include "kinora/ops/convolution.h"
#include "tests/error_of.h"
#include "tests/nn/random_values.h"

namespace kinora::nn {
namespace conv_test {

/// Result and gradients of one convolution.
struct Outcome {
  at::Tensor y;
  at::Tensor x_grad;
  at::Tensor weight_grad;
  at::Tensor bias_grad;
};

Outcome run(const std::vector<int64_t>& x_shape, const std::vector<int64_t>& weight_shape,
            const ops::ConvolutionOptions& options, int64_t max_elements) {
  const at::Tensor x = normal(x_shape, 1).to(at::kDouble).set_requires_grad(true);
  const at::Tensor weight = normal(weight_shape, 2).to(at::kDouble).set_requires_grad(true);
  const at::Tensor bias = normal({weight_shape[0]}, 3).to(at::kDouble).set_requires_grad(true);
  const at::Tensor y = ops::convolve(x, weight, bias, options, max_elements);
  torch::autograd::backward({(y * normal(y.sizes().vec(), 4)).sum()}, {});
  return {y.detach(), x.grad(), weight.grad(), bias.grad()};
}

void expect_near(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_LT((got - expected).abs().max().item<double>(), 1e-10);
}

// What is added goes where the result is, in pieces too, and has its gradient.
TEST(ConvTest, AddsWhatItIsGiven) {
  const at::Tensor x = normal({2, 4, 5, 6, 4}, 1).to(at::kDouble);
  const at::Tensor weight = normal({3, 4, 3, 3, 3}, 2).to(at::kDouble);
  const at::Tensor bias = normal({3}, 3).to(at::kDouble);
  ops::ConvolutionOptions options = {.stride = {1, 1, 1}, .padding = {{{2, 0}, {1, 1}, {1, 1}}}};
  for (const at::Tensor& added : {bias, at::Tensor()}) {
    options.plus = at::Tensor();
    const at::Tensor alone = ops::convolve(x, weight, added, options);
    options.plus = normal(alone.sizes().vec(), 5).to(at::kDouble).set_requires_grad(true);
    for (const int64_t limit : {ops::kMaxElements, int64_t{150}}) {
      options.plus.mutable_grad() = at::Tensor();
      const at::Tensor y = ops::convolve(x, weight, added, options, limit);
      expect_near(y.detach(), alone + options.plus.detach());
      const at::Tensor factors = normal(y.sizes().vec(), 4).to(at::kDouble);
      torch::autograd::backward({(y * factors).sum()}, {});
      expect_near(options.plus.grad(), factors);
    }
  }
}

struct PiecesCase {
  std::vector<int64_t> x;
  std::vector<int64_t> weight;
  ops::ConvolutionOptions options;
};

class ConvPiecesTest : public testing::TestWithParam<PiecesCase> {};

TEST_P(ConvPiecesTest, EqualOneCallAndItsGradients) {
  const auto& [x, weight, options] = GetParam();
  const Outcome whole = run(x, weight, options, ops::kMaxElements);
  for (const int64_t limit : {400, 150, 1}) {
    const Outcome pieces = run(x, weight, options, limit);
    expect_near(pieces.y, whole.y);
    expect_near(pieces.x_grad, whole.x_grad);
    expect_near(pieces.weight_grad, whole.weight_grad);
    expect_near(pieces.bias_grad, whole.bias_grad);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ConvPiecesTest,
    testing::Values(
        PiecesCase{{2, 3, 9, 7}, {4, 3, 3, 3}, {{1, 1}, {{1, 1}, {1, 1}}, 1}},
        PiecesCase{{1, 4, 10, 6}, {6, 2, 3, 3}, {{2, 2}, {{0, 1}, {0, 1}}, 2}},
        PiecesCase{{1, 2, 11, 5}, {2, 1, 5, 1}, {{1, 1}, {{2, 2}, {0, 0}}, 2}},
        PiecesCase{{3, 2, 40}, {3, 2, 4}, {{3}, {{1, 2}}, 1}},
        PiecesCase{{1, 2, 5, 6, 4}, {3, 2, 3, 3, 3}, {{1, 1, 1}, {{2, 0}, {1, 1}, {1, 1}}, 1}}));

TEST(ConvTest, EqualsLibtorchsWithZerosOnOneSide) {
  Conv conv({.in_channels = 3,
             .out_channels = 4,
             .kernel = {3, 3},
             .stride = {2, 2},
             .padding = {{0, 1}, {0, 1}}});
  give_random_values(conv, at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({2, 3, 8, 6}, 1);
  const at::Tensor expected =
      at::conv2d(at::constant_pad_nd(x, {0, 1, 0, 1}), conv.weight.value, conv.bias.value, 2);
  EXPECT_TRUE(at::equal(conv.forward(x), expected));
  EXPECT_EQ(conv.forward(x).sizes(), (std::vector<int64_t>{2, 4, 4, 3}));
}

TEST(ConvTest, ThreeDimsGradientsReachTheArena) {
  Conv conv(ConvShape::same(2, 3, 3, 3));
  give_random_values(conv, at::kFloat);
  const at::Tensor x = normal({1, 2, 3, 4, 5}, 1);
  torch::autograd::backward({conv.forward(x).square().sum()}, {});
  const at::Tensor expected_weight = conv.weight.value.grad().clone();
  const at::Tensor expected_bias = conv.bias.value.grad().clone();
  for (const auto& [path, parameter] : conv.named_parameters()) {
    parameter->grad = at::zeros(parameter->shape);
  }
  const at::Tensor y = conv.forward(x);
  EXPECT_TRUE(
      at::equal(y, at::conv3d(x, conv.weight.value, conv.bias.value, 1, {1, 1, 1}).detach()));
  torch::autograd::backward({y.square().sum()}, {});
  EXPECT_TRUE(at::equal(conv.weight.grad, expected_weight));
  EXPECT_TRUE(at::equal(conv.bias.grad, expected_bias));
}

TEST(ConvTest, OthersPaddingIsForPieces) {
  Conv conv(ConvShape::same(2, 2, 3));
  give_random_values(conv, at::kDouble);
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({1, 2, 8, 4}, 1);
  const at::Tensor whole = conv.forward(x);
  expect_near(conv.forward(x.narrow(2, 0, 5), {{1, 0}, {1, 1}}), whole.narrow(2, 0, 4));
  expect_near(conv.forward(x.narrow(2, 3, 5), {{0, 1}, {1, 1}}), whole.narrow(2, 4, 4));
}

TEST(ConvTest, DoubledPlacesAreSeenWithoutBeingMade) {
  Conv conv(ConvShape::same(2, 3, 3));
  give_random_values(conv, at::kDouble);
  const auto gradients = [&](const auto& function) {
    const at::Tensor x = normal({2, 2, 5, 4}, 1).to(at::kDouble).set_requires_grad(true);
    for (const auto& [path, parameter] : conv.named_parameters()) {
      parameter->value.mutable_grad() = at::Tensor();
    }
    const at::Tensor y = function(x);
    torch::autograd::backward({(y * normal(y.sizes().vec(), 2)).sum()}, {});
    return std::vector<at::Tensor>{y.detach(), x.grad(), conv.weight.value.grad(),
                                   conv.bias.value.grad()};
  };
  const auto expected = gradients([&](const at::Tensor& x) {
    return conv.forward(x.repeat_interleave(2, 2).repeat_interleave(2, 3));
  });
  const auto got = gradients([&](const at::Tensor& x) { return conv.forward_doubled(x); });
  const auto of_pieces = gradients([&](const at::Tensor& x) {
    return at::cat({conv.forward_doubled(x.narrow(2, 0, 3), {1, 0}),
                    conv.forward_doubled(x.narrow(2, 1, 4), {0, 1})},
                   2);
  });
  for (size_t i = 0; i < expected.size(); ++i) {
    expect_near(got[i], expected[i]);
    expect_near(of_pieces[i], expected[i]);
  }
}

// What a doubled clip's convolution makes of the clip itself, against that of the doubled one.
TEST(ConvTest, ADoubledClipIsMadeOfTheClip) {
  const at::NoGradGuard no_grad;
  const at::Tensor weight = normal({5, 4, 3, 3, 3}, 2).to(at::kDouble);
  const at::Tensor bias = normal({5}, 3).to(at::kDouble);
  for (const int64_t times : {1, 2}) {
    // 3 frames of 4 x 5 places, with what is seen around them.
    const at::Tensor x = normal({2, 4, 2 / times + 3, 6, 7}, 1).to(at::kDouble);
    const at::Tensor large = x.repeat_interleave(times, 2)
                                 .repeat_interleave(2, 3)
                                 .repeat_interleave(2, 4)
                                 .narrow(3, 1, 10)
                                 .narrow(4, 1, 12);
    for (const at::Tensor& added : {bias, at::zeros({5}, bias.options())}) {
      const at::Tensor whole = at::conv3d(large, weight, added);
      for (int64_t left_out = 0; left_out < times; ++left_out) {
        expect_near(ops::convolve_doubled_clip(x, weight, added.equal(bias) ? added : at::Tensor(),
                                               times, left_out),
                    whole.narrow(2, left_out, 3 * times - left_out));
      }
    }
  }
}

// Of tensors without memory a convolution makes what real ones would be.
TEST(ConvTest, DryRunsHaveTheShapesOfRealOnes) {
  const auto run = [](at::Device device) {
    const auto real = at::device(device).dtype(at::kFloat);
    const at::Tensor x = at::zeros({2, 4, 7, 9}, real).set_requires_grad(true);
    const at::Tensor weight = at::zeros({6, 2, 3, 3}, real).set_requires_grad(true);
    const at::Tensor bias = at::zeros({6}, real).set_requires_grad(true);
    const at::Tensor y =
        ops::convolve(x.contiguous(at::MemoryFormat::ChannelsLast), weight, bias,
                      {.stride = {2, 1}, .padding = {{{0, 1}, {1, 1}}}, .groups = 2});
    torch::autograd::backward({y.sum()}, {});
    return std::vector{y.sizes().vec(), x.grad().sizes().vec(), weight.grad().sizes().vec(),
                       bias.grad().sizes().vec()};
  };
  const device::DryRun dry(at::kCUDA);
  EXPECT_EQ(run(at::kMeta), run(at::kCPU));
}

TEST(ConvTest, WrongShapesAreNamed) {
  const auto refused = [](ConvShape shape) {
    return error_of(ErrorKind::kConfig, [&] { return Conv(shape).shape().groups; });
  };
  EXPECT_NE(refused({.in_channels = 4, .out_channels = 6, .kernel = {3}, .groups = 4})
                .find("groups must divide the channels 4 and 6, got 4"),
            std::string::npos);
  EXPECT_NE(refused({.in_channels = 4, .out_channels = 6, .kernel = {3, 3}, .stride = {2}})
                .find("must have 2 sizes, got 1"),
            std::string::npos);
  EXPECT_NE(
      refused({.in_channels = 4, .out_channels = 6, .kernel = {}}).find("1 to 3 sizes, got 0"),
      std::string::npos);
  Conv conv(ConvShape::same(3, 4, 3));
  give_random_values(conv, at::kFloat);
  const auto message = [&](std::vector<int64_t> x) {
    return error_of(ErrorKind::kShape, [&] { return conv.forward(normal(std::move(x), 1)); });
  };
  EXPECT_NE(message({2, 4, 5, 5}).find("[B, 3, 2 spatial sizes], got [2, 4, 5, 5]"),
            std::string::npos);
  EXPECT_NE(message({3, 5, 5}).find("got [3, 5, 5]"), std::string::npos);
  Conv wide(ConvShape::same(3, 4, 5));
  give_random_values(wide, at::kFloat);
  EXPECT_NE(error_of(ErrorKind::kShape,
                     [&] {
                       return wide.forward_doubled(normal({1, 3, 8, 8}, 1));
                     })
                .find("[O, C, 3, 3], got [4, 3, 5, 5]"),
            std::string::npos);
}

}  // namespace conv_test
}  // namespace kinora::nn
