#include "kinora/nn/cross_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <vector>

#include "kinora/core/error.h"

// Shapes: B batch, N tokens, L text tokens, C hidden, H heads, D = C / H.

namespace kinora::nn {

CrossAttention::CrossAttention(const Options& options)
    : head_size(options.hidden / options.heads),
      q_linear(options.hidden, options.hidden,
               Init::xavier_uniform(options.hidden, options.hidden)),
      kv_linear(options.hidden, 2 * options.hidden,
                Init::xavier_uniform(options.hidden, 2 * options.hidden)),
      proj(options.hidden, options.hidden,
           options.zero_output ? Init::zero()
                               : Init::xavier_uniform(options.hidden, options.hidden)) {
  const Stretch heads{options.hidden, options.heads};
  q_linear.set_cut({Cut::Dim::kOutputs, {heads}});
  kv_linear.set_cut({Cut::Dim::kOutputs, {heads, heads}});
  proj.set_cut({Cut::Dim::kInputs, {heads}});
  add_child("q_linear", q_linear);
  add_child("kv_linear", kv_linear);
  add_child("proj", proj);
}

at::Tensor CrossAttention::forward(const at::Tensor& x, const at::Tensor& text,
                                   const at::Tensor& lengths) const {
  KINORA_CHECK(x.dim() == 3 && text.dim() == 3 && text.size(0) == x.size(0) && lengths.dim() == 1 &&
                   lengths.size(0) == x.size(0),
               kShape,
               "[cross_attention] text and lengths must be [B, L, C] and [B] with B = ", x.size(0),
               ", got ", text.sizes(), " and ", lengths.sizes());
  const at::Tensor q =
      q_linear.forward(x).unflatten(-1, {-1, head_size}).transpose(1, 2);  // [B, H, N, D]
  const std::vector<at::Tensor> kv = kv_linear.forward(text)
                                         .unflatten(-1, {2, -1, head_size})
                                         .permute({2, 0, 3, 1, 4})  // [2, B, H, L, D]
                                         .unbind(0);
  const at::Tensor lengths_column = lengths.unsqueeze(1);
  const at::Tensor is_empty = lengths_column == 0;  // [B, 1]
  // What kernels make of a row without any token differs: it attends to all, and is cleared below.
  const at::Tensor attended =
      (at::arange(text.size(1), lengths.options()) < lengths_column).logical_or(is_empty);
  const at::Tensor out =
      at::scaled_dot_product_attention(q, kv[0], kv[1], attended.unsqueeze(1).unsqueeze(1))
          .transpose(1, 2)
          .flatten(2)  // [B, N, C]
          .masked_fill(is_empty.unsqueeze(1), 0.0);
  return tapped(proj.forward(out));
}

}  // namespace kinora::nn
