#include "kinora/ops/attention.h"

#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
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

/// Of some queries at a time.
at::Tensor attention_by_products(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 int64_t room) {
  constexpr int64_t kLeastBytes = int64_t{64} << 20;
  constexpr int64_t kScoreBytes = 10;  // in fp32, their softmax, that rounded
  const at::Tensor queries = q.flatten(0, 1);
  const at::Tensor keys = k.flatten(0, 1).transpose(1, 2);
  const at::Tensor values = v.flatten(0, 1);
  const int64_t row_bytes = kScoreBytes * queries.size(0) * keys.size(2);
  const int64_t count =
      std::clamp<int64_t>(std::max(room, kLeastBytes) / row_bytes, 1, queries.size(1));
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < queries.size(1); begin += count) {
    const at::Tensor some = queries.narrow(1, begin, std::min(count, queries.size(1) - begin));
    at::Tensor scores =
        at::empty({some.size(0), some.size(1), keys.size(2)}, q.options().dtype(at::kFloat));
    at::baddbmm_out(scores, scores, some, keys, at::kFloat, /*beta=*/0, scale);
    parts.push_back(at::bmm(at::softmax(scores, -1).to(values.scalar_type()), values));
  }
  return at::cat(parts, 1).view(q.sizes());
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, int64_t num_heads) {
  const auto [q, k, v] = split_heads(qkv, num_heads);
  const at::Tensor out = at::scaled_dot_product_attention(q, k, v);  // [B, H, N, D]
  return out.transpose(1, 2).flatten(2);                             // [B, N, C]
}

at::Tensor wide_head_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               int64_t room) {
  constexpr int64_t kWidestFused = 256;
  const bool is_half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const bool wants_gradients =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (!q.is_cuda() || !is_half || wants_gradients || q.size(3) <= kWidestFused) {
    return at::scaled_dot_product_attention(q, k, v);
  }
  return attention_by_products(q, k, v, room);
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
