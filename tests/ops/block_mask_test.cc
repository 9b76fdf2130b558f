#include "kinora/ops/block_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/kernels/attention.h"
#include "kinora/ops/block_kernels.h"
#include "tests/error_of.h"

namespace kinora::ops {
namespace block_mask_test {

constexpr int64_t kRows = kernels::BlockMask::kRows;

/// Three blocks of queries, two of keys.
at::Tensor some_blocks() {
  at::Tensor attended = at::zeros({3, 2}, at::kBool);
  attended[0][1] = true;
  attended[1][0] = true;
  attended[1][1] = true;
  attended[2][1] = true;
  return attended;
}

TEST(BlockMaskTest, ListsBlocksByQueriesAndByKeys) {
  const BlockMask mask(some_blocks(), at::kCPU);
  const kernels::BlockMask view = mask.view();
  EXPECT_EQ(std::vector<int32_t>(view.key_offsets, view.key_offsets + 4),
            (std::vector<int32_t>{0, 1, 3, 4}));
  EXPECT_EQ(std::vector<int32_t>(view.key_blocks, view.key_blocks + 4),
            (std::vector<int32_t>{1, 0, 1, 1}));
  EXPECT_EQ(std::vector<int32_t>(view.query_offsets, view.query_offsets + 3),
            (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(std::vector<int32_t>(view.query_blocks, view.query_blocks + 4),
            (std::vector<int32_t>{1, 0, 1, 2}));
  EXPECT_DOUBLE_EQ(mask.density(), 4.0 / 6.0);
}

TEST(BlockMaskTest, SaysWhatIsNoMask) {
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [] {
                         return BlockMask(at::zeros({2, 2}, at::kBool), at::kCPU).density();
                       }),
              testing::HasSubstr("a block of keys for each block of queries"));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [] {
                         return BlockMask(at::ones({2, 2}, at::kFloat), at::kCPU).density();
                       }),
              testing::HasSubstr("must be bool"));
  const BlockMask mask(some_blocks(), at::kCPU);
  EXPECT_THAT(error_of(ErrorKind::kShape, [&] { return mask.of_rows(3 * kRows + 1, kRows + 1); }),
              testing::HasSubstr("385 rows are not 3 blocks of 128"));
}

/// In fp32: everything of a call.
struct Problem {
  explicit Problem(const HeadTensors& heads)
      : in(heads),
        out(at::empty_like(heads.q)),
        dout(at::randn(heads.q.sizes())),
        grads{at::zeros_like(heads.q), at::zeros_like(heads.k), at::zeros_like(heads.v), {}} {}
  HeadTensors in;
  at::Tensor out;
  at::Tensor dout;
  HeadTensors grads;
};

kernels::HeadsView view_of(const at::Tensor& heads) {
  return {heads.data_ptr(), heads.stride(0), heads.stride(1), heads.stride(2)};
}

/// What the kernels' reference makes of it.
Problem of_reference(Problem problem) {
  const at::Tensor& q = problem.in.q;
  problem.out = at::empty_like(q);
  problem.grads = {
      at::zeros_like(q), at::zeros_like(problem.in.k), at::zeros_like(problem.in.v), {}};
  const at::Tensor lse = at::empty({q.size(0), q.size(2), q.size(1)}, at::kFloat);
  const kernels::AttentionShape shape = {
      .batch = q.size(0),
      .heads = q.size(2),
      .query_length = q.size(1),
      .key_length = problem.in.k.size(1),
      .head_dim = q.size(3),
      .type = DType::kF32,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.size(3)))),
      .key_lengths = problem.in.keys.lengths.defined()
                         ? problem.in.keys.lengths.const_data_ptr<int32_t>()
                         : nullptr,
      .mask = problem.in.keys.blocks->view()};
  const auto lse_data = lse.data_ptr<float>();
  kernels::attention_forward({shape, view_of(q), view_of(problem.in.k), view_of(problem.in.v),
                              view_of(problem.out), lse_data});
  kernels::attention_backward({shape, view_of(q), view_of(problem.in.k), view_of(problem.in.v),
                               view_of(problem.out), view_of(problem.dout), lse_data,
                               view_of(problem.grads.q), view_of(problem.grads.k),
                               view_of(problem.grads.v)});
  return problem;
}

TEST(BlockMaskTest, ComposedAttentionEqualsTheKernelsReference) {
  const at::NoGradGuard no_grad;
  const int64_t queries = 2 * kRows + 9;
  const int64_t keys = kRows + 30;
  const auto mask = std::make_shared<BlockMask>(some_blocks(), at::kCPU);
  BlockKernels kernels({}, at::kCPU, at::kFloat, false);
  // Each block of queries attends to the second block of keys, of which the second sample has one.
  for (const at::Tensor& lengths :
       {at::Tensor(), at::tensor({158, 129}, at::device(at::kCPU).dtype(at::kInt))}) {
    Problem problem({at::randn({2, queries, 2, 8}),
                     at::randn({2, keys, 2, 8}),
                     at::randn({2, keys, 2, 8}),
                     {.lengths = lengths, .blocks = mask}});
    EXPECT_FALSE(kernels.attend(problem.in, problem.out, {}));
    kernels.attend_backward(problem.dout, problem.in, problem.out, {}, problem.grads);
    const Problem want = of_reference(problem);
    EXPECT_LT((problem.out - want.out).abs().max().item<double>(), 1e-4);
    EXPECT_LT((problem.grads.q - want.grads.q).abs().max().item<double>(), 1e-4);
    EXPECT_LT((problem.grads.k - want.grads.k).abs().max().item<double>(), 1e-4);
    EXPECT_LT((problem.grads.v - want.grads.v).abs().max().item<double>(), 1e-4);
  }
}

}  // namespace block_mask_test
}  // namespace kinora::ops
