#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace kinora::ops {

/// Multi-head self-attention of packed projections, softmax statistics in fp32.
///
/// qkv: [B, N, 3 C], rows (3, H, D) major as DiT's `attn.qkv` writes them. Returns [B, N, C] in
/// qkv's dtype. The scale is 1 / sqrt(D).
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, int64_t num_heads);

/// The kernel of libtorch that attention() will run for such input: "flash", "efficient", "cudnn",
/// "math". For the start-up line and the run record.
[[nodiscard]] std::string attention_kernel(const at::Tensor& qkv, int64_t num_heads);

}  // namespace kinora::ops
