// Weights whose memory has room for their updates, against copies of the same weights.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinora/ops/block_stack.h"
#include "tests/ops/named_results.h"
#include "tests/ops/on_gpu.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_low_rank_room_test {

constexpr int64_t kWidth = 128;
constexpr int64_t kHidden = 4 * kWidth;
constexpr int64_t kTokens = 33;

/// An attention and an MLP beside each other, whose linears are parts of two, each of which has one
/// update of `rank`, and an MLP behind them.
class TwoBranches {
 public:
  TwoBranches(at::Device device, int64_t rank, int64_t room, at::ScalarType type)
      : device_(device), type_(type), rank_(rank), room_(room) {
    linears_ = {linear(3 * kWidth + kHidden, kWidth), linear(kWidth, kWidth + kHidden),
                linear(kHidden, kWidth), linear(kWidth, kHidden)};
    ParallelBody both;
    both.attention = {.qkv = some_outputs(linears_[0], 0, 3 * kWidth),
                      .proj = some_inputs(linears_[1], 0, kWidth, /*has_bias=*/false),
                      .heads = 2,
                      .length = kTokens};
    both.mlp = {.fc1 = some_outputs(linears_[0], 3 * kWidth, kHidden),
                .fc2 = some_inputs(linears_[1], kWidth, kHidden, /*has_bias=*/true)};
    stack_.blocks.push_back(
        {.branches = {{.body = both, .seam = {.shift = 0, .scale = 1, .gate = 2}},
                      {.body = MlpBody{.fc1 = linears_[2], .fc2 = linears_[3]},
                       .seam = {.shift = 3, .scale = 4, .gate = 5}}},
         .num_vectors = 6});
    x_ = random({2, kTokens, kWidth}, 1.0).set_requires_grad(true);
    vectors_ = random({2, 8 * kWidth}, 0.5).to(at::kFloat);
    weighting_ = random({2, kTokens, kWidth}, 1.0).to(at::kFloat);
  }

  /// Output and gradients of the last of two passes.
  NamedResults results(BlockKernels& kernels, Recompute level) {
    stack_.recompute = level;
    stack_.recomputed =
        first_others(std::vector<bool>(stack_.blocks.size()), level == Recompute::kBlock ? 1 : 0);
    at::Tensor out;
    for (int pass = 0; pass < 2; ++pass) {
      for (const LinearWeights& linear : linears_) {
        at::Tensor(linear.updates[0].a_grad).zero_();
        at::Tensor(linear.updates[0].b_grad).zero_();
      }
      x_.mutable_grad() = at::Tensor();
      out = run_blocks(kernels, stack_, {.x = x_, .vectors = vectors_});
      torch::autograd::backward({(out * weighting_).sum()}, {});
    }
    NamedResults results = {{"out", out.detach()}, {"dx", x_.grad()}};
    for (const LinearWeights& linear : linears_) {
      results.push_back({"A", linear.updates[0].a_grad.clone()});
      results.push_back({"B", linear.updates[0].b_grad.clone()});
    }
    return results;
  }

  /// The weights as they were made.
  void expect_untouched() const {
    for (const auto& [weight, values] : made_) {
      EXPECT_TRUE(at::equal(weight, values));
    }
  }

 private:
  at::Tensor random(const std::vector<int64_t>& shape, double deviation) {
    return (normal(shape, number_++) * deviation).to(device_, type_);
  }

  LinearWeights linear(int64_t out, int64_t in) {
    const auto fp32 = at::device(device_).dtype(at::kFloat);
    at::Tensor weight = random({out, in}, 0.1);
    if (room_ > 0) {
      const at::Tensor memory = at::zeros({out + room_, in + 64}, weight.options());
      made_.emplace_back(memory.narrow(0, 0, out).narrow(1, 0, in), weight);
      made_.back().first.copy_(weight);
      weight = made_.back().first;
    }
    LinearWeights linear{.weight = weight,
                         .bias = random({out}, 0.1),
                         .weight_grad = {},
                         .bias_grad = {},
                         .updates = {{.a = random({rank_, in}, 0.1),
                                      .b = random({out, rank_}, 0.1),
                                      .a_grad = at::zeros({rank_, in}, fp32),
                                      .b_grad = at::zeros({out, rank_}, fp32),
                                      .scale = 0.7}}};
    linear.free_columns = room_;
    linear.free_rows = room_;
    return linear;
  }

  at::Device device_;
  at::ScalarType type_;
  int64_t rank_;
  int64_t room_;
  int64_t number_ = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> made_;
  std::vector<LinearWeights> linears_;
  BlockStack stack_;
  at::Tensor x_, vectors_, weighting_;
};

TEST(GpuLowRankRoomTest, GivesWhatCopiesGive) {
  const at::Device gpu(at::kCUDA, 0);
  if (!begin_on_gpu()) {
    GTEST_SKIP() << "there is no GPU that has the kernels";
  }
  for (const int64_t rank : {4, 16}) {
    const int64_t room = rank == 4 ? 8 : 16;
    for (const Recompute level :
         {Recompute::kNone, Recompute::kElementwise, Recompute::kMlp, Recompute::kBlock}) {
      for (const bool takes_turns : {false, true}) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", level " << static_cast<int>(level)
                                        << ", turns " << takes_turns);
        BlockKernels kernels({}, gpu, at::kBFloat16, /*deterministic=*/true);
        if (takes_turns) {
          kernels.weights_take_turns();
        }
        TwoBranches copied(gpu, rank, 0, at::kBFloat16);
        TwoBranches in_place(gpu, rank, room, at::kBFloat16);
        // Parts that have no room at their sides round what updates add once more, to 2^-9.
        expect_near(copied.results(kernels, level), in_place.results(kernels, level), 0.01,
                    "in place");
        in_place.expect_untouched();
      }
    }
  }
}

}  // namespace gpu_low_rank_room_test
}  // namespace kinora::ops
