#include "kinora/ops/block_dry_run.h"

#include <ATen/ops/empty.h>

namespace kinora::ops::cuda {

std::string dry_attention_refusal(const kernels::AttentionShape& shape) {
  constexpr int64_t kMultiple = 8;
  constexpr int64_t kMost = 256;  // of cuDNN on Hopper
  return shape.head_dim % kMultiple == 0 && shape.head_dim <= kMost
             ? ""
             : "head_dim " + std::to_string(shape.head_dim);
}

at::Tensor dry_attention_workspace(const kernels::AttentionShape& shape) {
  return at::empty({shape.batch, shape.heads, shape.query_length, shape.head_dim + 1},
                   at::device(at::kMeta).dtype(at::kFloat));
}

}  // namespace kinora::ops::cuda
