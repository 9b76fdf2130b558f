#include "kinora/ops/group_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace group_norm_test {

constexpr int64_t kBatch = 2;
constexpr int64_t kChannels = 6;
constexpr GroupNormOptions kOptions = {.groups = 3, .epsilon = 1e-3, .silu = true};

/// x, weight, bias, channel_bias, offset.
std::vector<at::Tensor> inputs(at::ScalarType type) {
  return {normal({kBatch, kChannels, 3, 5}, 1, type), normal({kChannels}, 2, type),
          normal({kChannels}, 3, type), normal({kChannels}, 4, type),
          normal({kBatch, kChannels}, 5, type)};
}

at::Tensor of(const std::vector<at::Tensor>& in, const GroupNormOptions& options = kOptions) {
  return group_norm(in[0], in[1], in[2], options, in[3], in[4]);
}

TEST(GroupNormTest, IsTheFormula) {
  const auto in = inputs(at::kDouble);
  const auto spread = [](const at::Tensor& vector) { return vector.view({-1, kChannels, 1, 1}); };
  const at::Tensor z = in[0] + spread(in[3]) + spread(in[4]);
  const at::Tensor groups = z.reshape({kBatch, 3, -1});
  const at::Tensor centred = groups - groups.mean({2}, true);
  const at::Tensor variance = centred.square().mean({2}, true);
  const at::Tensor normed = (centred / (variance + 1e-3).sqrt()).view(z.sizes());
  const at::Tensor u = normed * spread(in[1]) + spread(in[2]);
  EXPECT_LT(relative_error(of(in), u * u.sigmoid()), 1e-14);
  EXPECT_LT(relative_error(of(in, {.groups = 3, .epsilon = 1e-3}), u), 1e-14);
  EXPECT_LT(relative_error(group_norm(z, in[1], in[2], kOptions), u * u.sigmoid()), 1e-14);
}

TEST(GroupNormTest, GradientsEqualFiniteDifferences) {
  const auto in = inputs(at::kDouble);
  const at::Tensor dy = normal({kBatch, kChannels, 3, 5}, 6, at::kDouble);
  for (size_t i = 0; i < in.size(); ++i) {
    const auto loss = [&](const at::Tensor& moved) {
      auto all = in;
      all[i] = moved;
      return (of(all) * dy).sum();
    };
    const at::Tensor at = in[i].clone().set_requires_grad(true);
    loss(at).backward();
    const at::Tensor direction = normal(in[i].sizes().vec(), 7, at::kDouble);
    const double derivative = (at.grad() * direction).sum().item<double>();
    EXPECT_NEAR(finite_difference(loss, in[i], direction), derivative, 1e-7) << i;
  }
}

TEST(GroupNormTest, HalfPrecisionIsRoundedOnce) {
  auto in = inputs(at::kBFloat16);
  const at::Tensor got = of(in);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  for (at::Tensor& tensor : in) {
    tensor = tensor.to(at::kFloat);
  }
  EXPECT_TRUE(got.equal(of(in).to(at::kBFloat16)));
  in[0] = in[0].to(at::kBFloat16);  // the others, parameters, may be fp32
  EXPECT_TRUE(got.equal(of(in)));
}

TEST(GroupNormTest, KeepsTheLayout) {
  auto in = inputs(at::kFloat);
  const at::Tensor expected = of(in);
  EXPECT_TRUE(expected.is_contiguous());
  in[0] = in[0].contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor got = of(in);
  EXPECT_EQ(got.strides(), in[0].strides());
  EXPECT_LT(relative_error(got, expected), 1e-6);
}

TEST(GroupNormTest, WrongShapesAreErrors) {
  const auto in = inputs(at::kFloat);
  const auto expect_error = [&](size_t which, std::vector<int64_t> shape, const char* words) {
    auto all = in;
    all[which] = at::empty(shape);
    const std::string message = kinora::error_of(ErrorKind::kShape, [&] { return of(all); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect_error(0, {6}, "[group_norm] x must have shape [B, C, ...], got [6]");
  expect_error(0, {2, 7, 3}, "groups must divide the channels of x, 7, got 3");
  expect_error(1, {5}, "weight must have shape [6], got [5]");
  expect_error(2, {6, 1}, "bias must have shape [6], got [6, 1]");
  expect_error(3, {1}, "channel_bias must have shape [6], got [1]");
  expect_error(4, {1, 6}, "offset must have shape [2, 6], got [1, 6]");
  const std::string message =
      kinora::error_of(ErrorKind::kShape, [&] { return of(in, {.groups = 0}); });
  EXPECT_NE(message.find("groups must divide the channels of x, 6, got 0"), std::string::npos);
}

}  // namespace group_norm_test
}  // namespace kinora::ops
