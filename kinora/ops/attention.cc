#include "kinora/ops/attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <vector>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace {

struct Heads {
  at::Tensor q, k, v;  // each [B, H, N, D], views of qkv
};

Heads split_heads(const at::Tensor& qkv, int64_t num_heads) {
  KINORA_CHECK(qkv.dim() == 3 && qkv.size(2) % (3 * num_heads) == 0, kShape,
               "[attention] qkv must have shape [B, N, 3 * heads * D] with ", num_heads,
               " heads, got ", qkv.sizes());
  // unbind, not three selects: its backward writes the packed gradient once.
  const std::vector<at::Tensor> parts = qkv.view({qkv.size(0), qkv.size(1), 3, num_heads, -1})
                                            .permute({2, 0, 3, 1, 4})  // [3, B, H, N, D]
                                            .unbind(0);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, int64_t num_heads) {
  const auto [q, k, v] = split_heads(qkv, num_heads);
  const at::Tensor out = at::scaled_dot_product_attention(q, k, v);  // [B, H, N, D]
  return out.transpose(1, 2).flatten(2);                             // [B, N, C]
}

std::string attention_kernel(const at::Tensor& qkv, int64_t num_heads) {
  const auto [q, k, v] = split_heads(qkv, num_heads);
  switch (static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v))) {
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "efficient";
    case at::SDPBackend::cudnn_attention:
      return "cudnn";
    case at::SDPBackend::math:
      return "math";
    default:
      return "unknown";
  }
}

}  // namespace kinora::ops
