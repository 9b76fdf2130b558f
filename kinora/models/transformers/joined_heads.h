#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/nn/module.h"
#include "kinora/nn/rms_norm.h"

/// Attention whose queries and keys are normed over all heads together (Wan, LTX-Video).
namespace kinora::models {

/// RMSNorm of queries and of keys over all heads: keys q_norm, k_norm, [C].
class JoinedHeadNorms : public nn::Module {
 public:
  JoinedHeadNorms(int64_t hidden, double epsilon);

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  nn::RmsNorm q_norm;
  nn::RmsNorm k_norm;
  // NOLINTEND(readability-identifier-naming)
};

/// [B, tokens, C] -> [B, H, tokens, D].
[[nodiscard]] at::Tensor in_heads(const at::Tensor& x, int64_t num_heads);

/// q: [B, H, N, D], k and v: [B, H, L, D]. lengths: int64 [B], so many of the L are attended to, of
/// a row without any none; undefined: all. Returns [B, N, C].
[[nodiscard]] at::Tensor attend_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const at::Tensor& lengths = {});

}  // namespace kinora::models
