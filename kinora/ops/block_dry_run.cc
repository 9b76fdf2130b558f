#include "kinora/ops/block_dry_run.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace kinora::ops::cuda {

std::string dry_attention_refusal(const kernels::AttentionShape& shape) {
  constexpr int64_t kMultiple = 8;
  constexpr int64_t kMost = 256;  // of cuDNN on Hopper
  return shape.head_dim % kMultiple == 0 && shape.head_dim <= kMost
             ? ""
             : "head_dim " + std::to_string(shape.head_dim);
}

bool dry_low_rank_supported(DType type, int64_t in, int64_t out) {
  constexpr int64_t kMultiple = 8;
  return (type == DType::kBF16 || type == DType::kF16) && in % kMultiple == 0 &&
         out % kMultiple == 0;
}

at::Tensor dry_attention_workspace(const kernels::AttentionShape& shape) {
  const int64_t rows = shape.batch * shape.heads * shape.query_length;
  const int64_t sums = rows * (shape.head_dim + 1) * 4;
  const int64_t scores = rows * shape.key_length * 2;
  return at::empty({kernels::is_worth_trying(scores, sums) ? std::max(sums, scores) : sums},
                   at::device(at::kMeta).dtype(at::kByte));
}

}  // namespace kinora::ops::cuda
