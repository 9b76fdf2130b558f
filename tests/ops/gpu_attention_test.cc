// Attention of wide heads on a GPU.

#include "kinora/ops/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kinora/core/cuda.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_attention_test {

TEST(GpuWideHeadAttentionTest, IsThatOfItsFormula) {
  if (!cuda_available()) {
    GTEST_SKIP() << "there is no GPU";
  }
  const at::NoGradGuard no_grad;
  struct Case {
    int64_t batch, queries, keys, width;
  };
  // Several products and one, several clips, no whole tiles.
  for (const auto& [batch, queries, keys, width] :
       {Case{1, 9216, 20000, 512}, {2, 1000, 1003, 384}, {1, 7, 7, 512}}) {
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      const auto made = [&](int64_t tokens, int64_t number) {
        return normal({batch, 1, tokens, width}, number, type).to(at::kCUDA);
      };
      // Scores of a few tens: of softmax much is at few keys.
      const at::Tensor q = made(queries, 1) * 2.0;
      const at::Tensor k = made(keys, 2);
      const at::Tensor v = made(keys, 3);
      const int64_t compared = std::min<int64_t>(queries, 500);
      const at::Tensor rows = q.narrow(2, queries - compared, compared).to(at::kDouble);
      const at::Tensor scores = at::matmul(rows, k.to(at::kDouble).transpose(2, 3)) /
                                std::sqrt(static_cast<double>(width));
      const at::Tensor want = at::matmul(at::softmax(scores, -1), v.to(at::kDouble));
      const at::Tensor got =
          wide_head_attention(q, k, v, /*room=*/0).narrow(2, queries - compared, compared);
      EXPECT_LT(relative_error(got, want), type == at::kHalf ? 1e-3 : 8e-3)
          << batch << " x " << queries << " x " << keys << " x " << width;
    }
  }
}

}  // namespace gpu_attention_test
}  // namespace kinora::ops
