#pragma once

#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"
#include "kinora/ops/block_stack.h"

namespace kinora::nn {

/// Attention of image or video tokens to text: keys q_linear, kv_linear, proj.
class CrossAttention : public Module {
 public:
  struct Options {
    int64_t hidden = 0;
    int64_t heads = 1;
    bool zero_output = true;
  };
  explicit CrossAttention(const Options& options);

  /// x: [B, N, C]. text: [B, L, C], of which the first lengths[b] (int64 [B]) tokens are attended
  /// to; a row without any gives zeros before the projection. Returns [B, N, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& text,
                                   const at::Tensor& lengths) const;

  /// For the fast path.
  [[nodiscard]] ops::CrossAttentionBody body() const {
    return {q_linear.weights(), kv_linear.weights(), proj.weights(), num_heads()};
  }

  /// Those that are here.
  [[nodiscard]] int64_t num_heads() const { return q_linear.weight.shape.front() / head_size; }

  int64_t head_size;  // D
  Linear q_linear;    // [C, C]
  Linear kv_linear;   // [2 C, C], rows (2, H, D) major
  Linear proj;        // [C, C]
};

}  // namespace kinora::nn
