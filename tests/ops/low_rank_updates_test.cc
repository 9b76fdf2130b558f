// Low-rank updates of parts of a linear: composed, and joined to one update as the kernels read it.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "kinora/kernels/low_rank.h"
#include "kinora/ops/branch_pass.h"
#include "kinora/ops/linear_weights.h"
#include "kinora/ops/low_rank_linears.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::ops {
namespace low_rank_updates_test {

constexpr int64_t kIn = 16;
constexpr int64_t kRows = 13;

/// Queries, keys and values of 8, 24 and 16 rows, of which the keys have no update.
class Parts {
 public:
  explicit Parts(double second_scale = 0.5) {
    const at::Tensor weights = normal({48, kIn}, 1);
    std::vector<LinearWeights> linears(3);
    int64_t row = 0;
    for (const auto& [linear, rows] : {std::pair(0, 8), std::pair(1, 24), std::pair(2, 16)}) {
      linears[linear].weight = weights.narrow(0, row, rows);
      row += rows;
    }
    linears[0].updates = {update(8, 3, 0.5)};
    linears[2].updates = {update(16, 2, second_scale)};
    const std::vector<LinearWeights> merged = merge_adjacent(linears);
    EXPECT_EQ(merged.size(), 1U);
    whole = merged.front();
  }

  /// The weight with its updates.
  [[nodiscard]] at::Tensor changed() const {
    at::Tensor sum = whole.weight.clone();
    for (const LowRankWeights& update : whole.updates) {
      sum.narrow(0, update.first_row, update.rows())
          .add_(at::matmul(update.b, update.a), update.scale);
    }
    return sum;
  }

  LinearWeights whole;
  at::Tensor x = normal({kRows, kIn}, 20);
  at::Tensor dy = normal({kRows, 48}, 21);

 private:
  LowRankWeights update(int64_t rows, int64_t rank, double scale) {
    return {.a = normal({rank, kIn}, number_++),
            .b = normal({rows, rank}, number_++),
            .a_grad = at::zeros({rank, kIn}),
            .b_grad = at::zeros({rows, rank}),
            .scale = scale};
  }

  int64_t number_ = 2;
};

void expect_near(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_LT(relative_error(got, want), tolerance::kFewRoundings);
}

/// Of the factors, from dW = dy^T x: dB = scale dW A^T and dA = scale B^T dW of its own rows.
void expect_gradients(const Parts& parts) {
  const at::Tensor dw = at::matmul(parts.dy.t(), parts.x);
  for (const LowRankWeights& update : parts.whole.updates) {
    const at::Tensor own = dw.narrow(0, update.first_row, update.rows());
    expect_near(update.b_grad, at::matmul(own, update.a.t()) * update.scale);
    expect_near(update.a_grad, at::matmul(update.b.t(), own) * update.scale);
  }
}

TEST(LowRankUpdatesTest, MergedLinearsKeepTheUpdatesOfEach) {
  const Parts parts;
  EXPECT_EQ(parts.whole.weight.size(0), 48);
  ASSERT_EQ(parts.whole.updates.size(), 2U);
  EXPECT_EQ(parts.whole.updates[0].first_row, 0);
  EXPECT_EQ(parts.whole.updates[1].first_row, 32);
}

TEST(LowRankUpdatesTest, EachChangesItsOwnRows) {
  for (const double scale : {0.5, 2.0}) {
    const Parts parts(scale);
    const at::Tensor low = low_of(parts.whole, parts.x);
    expect_near(at::matmul(parts.x, parts.whole.weight.t()) + raised(parts.whole, low),
                at::matmul(parts.x, parts.changed().t()));
    const at::Tensor dx = at::matmul(parts.dy, parts.whole.weight) +
                          update_backward(parts.whole, parts.dy, parts.x, low);
    expect_near(dx, at::matmul(parts.dy, parts.changed()));
    expect_gradients(parts);
  }
}

TEST(LowRankUpdatesTest, RanksAddUpToOneThatKernelsHave) {
  Parts parts;
  EXPECT_EQ(joined_rank(parts.whole), 8) << "of 3 and 2";
  EXPECT_FALSE(is_joined(parts.whole));
  EXPECT_EQ(joined_rank(Parts(2.0).whole), 0) << "of unlike scales";
  LinearWeights one;
  one.weight = normal({8, kIn}, 1);
  EXPECT_EQ(joined_rank(one), 0) << "without updates";
  for (const auto& [rank, joined] :
       {std::pair(8, 8), std::pair(24, 32), std::pair(64, 64), std::pair(65, 0)}) {
    one.updates.resize(1);
    one.updates[0].a = at::zeros({rank, kIn});
    one.updates[0].b = at::zeros({8, rank});
    EXPECT_EQ(joined_rank(one), joined);
    EXPECT_EQ(is_joined(one), rank == joined);
  }
}

// What kernels make of the joined factors, by their reference, is what the updates are.
TEST(LowRankUpdatesTest, JoinedTheyAreOneUpdate) {
  const Parts parts;
  constexpr int64_t kOut = 48;
  const int64_t rank = joined_rank(parts.whole);
  const JoinedFactors factors{
      .a = at::zeros({rank, kIn}), .b = at::zeros({kOut, rank}), .scale = 0.5};
  join(parts.whole, factors);
  const at::Tensor low = at::zeros({kRows, rank});
  const at::Tensor joined = at::zeros({kOut + rank, kIn + rank});
  joined.narrow(0, 0, kOut).narrow(1, 0, kIn).copy_(parts.whole.weight);
  kernels::low_rank_forward({.rows = kRows,
                             .in = kIn,
                             .out = kOut,
                             .rank = rank,
                             .type = DType::kF32,
                             .scale = 0.5F,
                             .x = parts.x.const_data_ptr(),
                             .x_stride = kIn,
                             .a = factors.a.const_data_ptr(),
                             .a_stride = kIn,
                             .b = factors.b.const_data_ptr(),
                             .low = low.data_ptr(),
                             .low_stride = rank,
                             .behind = joined.narrow(1, kIn, rank).data_ptr(),
                             .below = joined.narrow(0, kOut, rank).data_ptr(),
                             .weight_stride = kIn + rank});
  expect_near(at::matmul(at::cat({parts.x, low}, 1), joined.narrow(0, 0, kOut).t()),
              at::matmul(parts.x, parts.changed().t()));

  const at::Tensor dlow = at::zeros({kRows, rank});
  const at::Tensor a_grad = at::zeros({rank, kIn});
  const at::Tensor b_grad = at::zeros({kOut, rank});
  kernels::low_rank_backward({.rows = kRows,
                              .in = kIn,
                              .out = kOut,
                              .rank = rank,
                              .type = DType::kF32,
                              .scale = 0.5F,
                              .dy = parts.dy.const_data_ptr(),
                              .dy_stride = kOut,
                              .x = parts.x.const_data_ptr(),
                              .x_stride = kIn,
                              .low = low.const_data_ptr(),
                              .low_stride = rank,
                              .b = factors.b.const_data_ptr(),
                              .dlow = dlow.data_ptr(),
                              .dlow_stride = rank,
                              .a_grad = a_grad.data_ptr<float>(),
                              .a_grad_stride = kIn,
                              .b_grad = b_grad.data_ptr<float>()});
  expect_near(at::matmul(at::cat({parts.dy, dlow}, 1), joined.narrow(1, 0, kIn)),
              at::matmul(parts.dy, parts.changed()));
  add_parts(parts.whole.updates, a_grad, b_grad);
  expect_gradients(parts);
}

}  // namespace low_rank_updates_test
}  // namespace kinora::ops
