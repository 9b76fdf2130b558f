#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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

/// softmax(q k^T / sqrt(D)) v of heads [B, H, N, D] that may be wide, with keys and values of as
/// many tokens as there are. libtorch's, whose only kernel for D > 256 multiplies at a sixth of
/// what a GPU can; there, in 16 bits and without gradients, products of some queries at a time,
/// with fp32 scores.
/// @param room  bytes that these may take; 64 MiB at least are taken
[[nodiscard]] at::Tensor wide_head_attention(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, int64_t room);

}  // namespace kinora::ops
