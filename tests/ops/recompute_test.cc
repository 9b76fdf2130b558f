#include "kinora/ops/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinora/ops/parameter.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace recompute_test {

struct Gradients {
  at::Tensor x;
  at::Tensor c;
  at::Tensor parameter;
  double loss = 0.0;
  int calls = 0;
};

/// The loss of a small network with a parameter, two inputs and, before and after, other layers.
Gradients run(bool recomputed, at::ScalarType type = at::kFloat) {
  Gradients result;
  const at::Tensor x = normal({5, 4}, 1, type).set_requires_grad(true);
  const at::Tensor c = normal({5, 4}, 2, type).set_requires_grad(true);
  const at::Tensor weight = normal({4, 4}, 3, type).set_requires_grad(true);
  result.parameter = at::zeros({4, 4}, type == at::kDouble ? at::kDouble : at::kFloat);
  const auto body = [&](const std::vector<at::Tensor>& in) {
    ++result.calls;
    return at::matmul(in[0].sin(), with_gradient(weight, result.parameter)) * in[1].exp();
  };
  const std::vector<at::Tensor> inputs = {x * 2.0, c};
  const at::Tensor loss = (recomputed ? recompute(body, inputs) : body(inputs)).square().sum();
  torch::autograd::backward({loss}, {});
  result.x = x.grad();
  result.c = c.grad();
  result.loss = loss.item<double>();
  return result;
}

TEST(RecomputeTest, GradientsEqualThePlainOnesAndTheBodyRunsTwice) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Gradients plain = run(false, type);
    const Gradients again = run(true, type);
    EXPECT_EQ(plain.calls, 1);
    EXPECT_EQ(again.calls, 2);
    EXPECT_EQ(plain.loss, again.loss);
    EXPECT_TRUE(at::equal(plain.x, again.x));
    EXPECT_TRUE(at::equal(plain.c, again.c));
    EXPECT_TRUE(at::equal(plain.parameter, again.parameter));
  }
}

TEST(RecomputeTest, TheFirstTimeIsKnown) {
  const at::Tensor x = normal({3}, 1).set_requires_grad(true);
  std::vector<bool> known;
  const auto body = [&](const std::vector<at::Tensor>& in) {
    known.push_back(will_recompute());
    return in[0].sin();
  };
  torch::autograd::backward({recompute(body, {x}).sum()}, {});
  EXPECT_EQ(known, (std::vector<bool>{true, false}));
  const at::NoGradGuard no_grad;
  (void)recompute(body, {x});
  EXPECT_FALSE(known.back()) << "there is no second time";
  EXPECT_FALSE(will_recompute());
}

TEST(RecomputeTest, MatchesFiniteDifferences) {
  const at::Tensor x = normal({6}, 1, at::kDouble).set_requires_grad(true);
  const auto body = [](const std::vector<at::Tensor>& in) { return in[0].sin() * in[0].exp(); };
  torch::autograd::backward({recompute(body, {x}).sum()}, {});
  const at::Tensor direction = normal({6}, 2, at::kDouble);
  EXPECT_NEAR(
      (x.grad() * direction).sum().item<double>(),
      finite_difference([&](const at::Tensor& at) { return body({at}).sum(); }, x, direction),
      1e-8);
}

TEST(RecomputeTest, InputsWithoutGradientsGetNone) {
  const at::Tensor x = normal({3}, 1).set_requires_grad(true);
  const at::Tensor constant = normal({3}, 2);
  const auto body = [](const std::vector<at::Tensor>& in) { return in[0] * in[1]; };
  torch::autograd::backward({recompute(body, {x, constant}).sum()}, {});
  EXPECT_TRUE(at::equal(x.grad(), constant));
  EXPECT_FALSE(constant.grad().defined());
}

// Two streams that meet, of which one goes on as it was, or ends.
TEST(RecomputeTest, SeveralStreams) {
  const at::Tensor c = normal({3}, 5);
  const auto run = [&c](bool recomputed, bool ends) {
    const at::Tensor text = normal({3}, 1).set_requires_grad(true);
    const at::Tensor image = normal({3}, 2).set_requires_grad(true);
    const auto body = [](const std::vector<at::Tensor>& in) {
      return std::vector<at::Tensor>{in[0], in[1] * in[0].sin(), in[2]};
    };
    const std::vector<at::Tensor> inputs = {text, image, c};
    const std::vector<at::Tensor> out = recomputed ? recompute(body, inputs) : body(inputs);
    const at::Tensor loss = (out[1] * out[2]).sum();
    torch::autograd::backward({ends ? loss : loss + out[0].exp().sum()}, {});
    return std::vector<at::Tensor>{out[0], out[1], text.grad(), image.grad()};
  };
  for (const bool ends : {false, true}) {
    const std::vector<at::Tensor> plain = run(false, ends);
    const std::vector<at::Tensor> again = run(true, ends);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(plain[i], again[i])) << i;
    }
  }
  EXPECT_FALSE(c.grad().defined());
}

TEST(RecomputeTest, OneInsideAnother) {
  const at::Tensor x = normal({3}, 1).set_requires_grad(true);
  int calls = 0;
  const auto inner = [&](const std::vector<at::Tensor>& in) {
    ++calls;
    return in[0].sin();
  };
  const auto outer = [&](const std::vector<at::Tensor>& in) {
    return recompute(inner, {in[0] * 2.0}).exp();
  };
  torch::autograd::backward({recompute(outer, {x}).sum()}, {});
  const at::Tensor u = x.detach() * 2.0;
  EXPECT_LT(relative_error(x.grad(), u.sin().exp() * u.cos() * 2.0), 1e-6);
  EXPECT_EQ(calls, 3);
}

TEST(RecomputeTest, RunsOnceWhereNothingIsRecorded) {
  const at::NoGradGuard no_grad;
  int calls = 0;
  const at::Tensor x = normal({3}, 1);
  const at::Tensor y = recompute(
      [&](const std::vector<at::Tensor>& in) {
        ++calls;
        return in[0] * 3.0;
      },
      {x});
  EXPECT_TRUE(at::equal(y, x * 3.0));
  EXPECT_EQ(calls, 1);
}

}  // namespace recompute_test
}  // namespace kinora::ops
