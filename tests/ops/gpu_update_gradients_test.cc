// The gradients of low-rank updates wait for the end of their block; those of a pass that fails
// before it must not be met again.

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <stdexcept>

#include "kinora/ops/block_stack.h"
#include "tests/ops/named_results.h"
#include "tests/ops/on_gpu.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_update_gradients_test {

constexpr int64_t kWidth = 128;
constexpr int64_t kRank = 8;
constexpr int64_t kTokens = 33;

/// A block of a function, whose backward can be made to fail, and an MLP with updates behind it.
class FailingBlock {
 public:
  explicit FailingBlock(at::Device device) : device_(device) {
    mlp_ = {.fc1 = linear(4 * kWidth, kWidth), .fc2 = linear(kWidth, 4 * kWidth)};
    stack_.blocks.push_back(
        {.branches = {{.body = FunctionBody{[this](const at::Tensor& rows) {
                                              const at::Tensor result = rows * 0.5;
                                              result.register_hook([this](const at::Tensor&) {
                                                if (fails) {
                                                  throw std::runtime_error("as asked");
                                                }
                                              });
                                              return result;
                                            },
                                            {}}},
                      {.body = mlp_, .seam = {.shift = 0, .scale = 1, .gate = 2}}},
         .num_vectors = 3});
    x_ = random({2, kTokens, kWidth}, 1.0).set_requires_grad(true);
    vectors_ = random({2, 5 * kWidth}, 0.5).to(at::kFloat);
    weighting_ = random({2, kTokens, kWidth}, 1.0).to(at::kFloat);
  }

  /// Whether the updates are computed with their linears, and so wait.
  [[nodiscard]] bool waits(const BlockKernels& kernels) const {
    return kernels.room(mlp_.fc1) > 0 && kernels.room(mlp_.fc2) > 0;
  }

  /// Gradients of one pass.
  NamedResults step(BlockKernels& kernels) {
    NamedResults results;
    for (const LinearWeights* linear : {&mlp_.fc1, &mlp_.fc2}) {
      for (const LowRankWeights& update : linear->updates) {
        at::Tensor(update.a_grad).zero_();
        at::Tensor(update.b_grad).zero_();
      }
    }
    const at::Tensor out = run_blocks(kernels, stack_, {.x = x_, .vectors = vectors_});
    torch::autograd::backward({(out * weighting_).sum()}, {});
    for (const LinearWeights* linear : {&mlp_.fc1, &mlp_.fc2}) {
      for (const LowRankWeights& update : linear->updates) {
        results.push_back({"A", update.a_grad.clone()});
        results.push_back({"B", update.b_grad.clone()});
      }
    }
    return results;
  }

  bool fails = false;

 private:
  at::Tensor random(const std::vector<int64_t>& shape, double deviation) {
    return (normal(shape, number_++) * deviation).to(device_, at::kBFloat16);
  }

  LinearWeights linear(int64_t out, int64_t in) {
    const auto fp32 = at::device(device_).dtype(at::kFloat);
    return {.weight = random({out, in}, 0.1),
            .bias = random({out}, 0.1),
            .weight_grad = {},
            .bias_grad = {},
            .updates = {{.a = random({kRank, in}, 0.1),
                         .b = random({out, kRank}, 0.1),
                         .a_grad = at::zeros({kRank, in}, fp32),
                         .b_grad = at::zeros({out, kRank}, fp32)}}};
  }

  at::Device device_;
  int64_t number_ = 0;
  MlpBody mlp_;
  BlockStack stack_;
  at::Tensor x_, vectors_, weighting_;
};

TEST(GpuUpdateGradientsTest, ThoseOfAPassThatFailedAreNotAddedByTheNext) {
  const at::Device gpu(at::kCUDA, 0);
  if (!begin_on_gpu()) {
    GTEST_SKIP() << "there is no GPU that has the kernels";
  }
  BlockKernels kernels({}, gpu, at::kBFloat16, /*deterministic=*/true);
  FailingBlock block(gpu);
  ASSERT_TRUE(block.waits(kernels));
  const NamedResults expected = block.step(kernels);
  block.fails = true;
  EXPECT_THROW((void)block.step(kernels), std::runtime_error);
  block.fails = false;
  const NamedResults got = block.step(kernels);
  expect_same(expected, got, "after a pass that failed");
  for (const NamedResult& result : got) {
    EXPECT_GT(result.value.abs().max().item<double>(), 0.0) << result.name;
  }
}

}  // namespace gpu_update_gradients_test
}  // namespace kinora::ops
