#include "kinora/models/transformers/joined_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace kinora::models {

JoinedHeadNorms::JoinedHeadNorms(int64_t hidden, double epsilon)
    : q_norm(hidden, epsilon), k_norm(hidden, epsilon) {
  add_child("q_norm", q_norm);
  add_child("k_norm", k_norm);
}

at::Tensor in_heads(const at::Tensor& x, int64_t num_heads) {
  return x.unflatten(-1, {num_heads, -1}).transpose(1, 2);
}

at::Tensor attend_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& lengths) {
  if (!lengths.defined()) {
    return at::scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2);
  }
  const at::Tensor column = lengths.unsqueeze(1);
  const at::Tensor is_empty = column == 0;  // [B, 1]
  // What kernels make of a row without any token differs: it attends to all, and is cleared below.
  const at::Tensor attended =
      (at::arange(k.size(2), lengths.options()) < column).logical_or(is_empty);
  return at::scaled_dot_product_attention(q, k, v, attended.unsqueeze(1).unsqueeze(1))
      .transpose(1, 2)
      .flatten(2)
      .masked_fill(is_empty.unsqueeze(1), 0.0);
}

}  // namespace kinora::models
