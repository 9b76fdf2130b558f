#include "kinora/ops/bucket_hook.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace bucket_hook_test {

using testing::ElementsAre;

TEST(BucketHookTest, ActionRunsOnceWhenAllStreamsAreBack) {
  const at::Tensor text = normal({3}, 1).set_requires_grad(true);
  const at::Tensor image = normal({5}, 2).set_requires_grad(true);
  std::vector<std::string> seen;
  const auto say = [&seen](const char* word) { return [&seen, word] { seen.emplace_back(word); }; };
  std::vector<at::Tensor> streams = on_backward({text, image}, say("before the block"));
  streams = {streams[0] * 2.0, on_backward(streams[1], say("in the image")) * streams[0].sum()};
  streams = on_backward(streams, say("behind the block"));
  torch::autograd::backward({streams[0].sum() + streams[1].sum()}, {});
  EXPECT_THAT(seen, ElementsAre("behind the block", "in the image", "before the block"));
  const double sum = image.sum().item<double>();
  EXPECT_LT(relative_error(text.grad(), at::ones_like(text) * (2.0 + sum)), 1e-6);
  EXPECT_LT(relative_error(image.grad(), at::ones_like(image) * text.sum().item<double>()), 1e-6);
}

// What nothing reads has a gradient of zero, and what is frozen gets none.
TEST(BucketHookTest, StreamsMayEnd) {
  const at::Tensor text = normal({3}, 1);
  const at::Tensor image = normal({5}, 2).set_requires_grad(true);
  int calls = 0;
  const std::vector<at::Tensor> streams = on_backward({image, text}, [&calls] { ++calls; });
  torch::autograd::backward({streams[0].sum()}, {});
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(text.grad().defined());
}

TEST(BucketHookTest, BackwardComesAlsoWhereAllBeforeIsFrozen) {
  int calls = 0;
  const at::Tensor x = on_backward(normal({3}, 1), [&calls] { ++calls; });
  torch::autograd::backward({x.sum()}, {});
  EXPECT_EQ(calls, 1);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(on_backward(normal({3}, 1), [&calls] { ++calls; }).requires_grad());
}

}  // namespace bucket_hook_test
}  // namespace kinora::ops
