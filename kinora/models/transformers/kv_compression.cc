#include "kinora/models/transformers/kv_compression.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>

#include "kinora/core/error.h"

// Shapes: B images, N tokens, N' of them left, C hidden, H heads, D = C / H.

namespace kinora::models {

KvCompression::KvCompression(int64_t hidden, KvSampling sampling, int64_t factor)
    : sampling_(sampling), factor_(factor) {
  if (sampling == KvSampling::kConv) {
    sr.emplace(nn::ConvShape{.in_channels = hidden,
                             .out_channels = hidden,
                             .kernel = {factor, factor},
                             .stride = {factor, factor},
                             .groups = hidden});
    sr->weight.init = nn::Init::constant(1.0 / static_cast<double>(factor * factor));
    sr->bias.init = nn::Init::zero();
    norm.emplace(hidden);
    add_child("sr", *sr);
    add_child("norm", *norm);
  }
}

at::Tensor KvCompression::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                 int64_t rows, int64_t columns) const {
  const std::vector<at::Tensor> parts = attention.qkv.forward(x).chunk(3, -1);  // [B, N, C]
  const auto heads = [&](const at::Tensor& all) {
    return all.unflatten(-1, {attention.num_heads(), -1});  // [B, N or N', H, D]
  };
  at::Tensor q = heads(parts[0]);
  at::Tensor k = heads(forward(parts[1], rows, columns));
  if (attention.q_norm) {
    q = attention.q_norm->forward(q);
    k = attention.k_norm->forward(k);
  }
  const at::Tensor v = heads(forward(parts[2], rows, columns));
  const at::Tensor out =
      at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2));
  return attention.proj.forward(out.transpose(1, 2).flatten(2));
}

at::Tensor KvCompression::forward(const at::Tensor& x, int64_t rows, int64_t columns) const {
  KINORA_CHECK(x.dim() == 3 && x.size(1) == rows * columns, kShape,
               "[kv_compression] x must be [B, ", rows * columns, ", C], got ", x.sizes());
  if (sampling_ == KvSampling::kUniformEvery) {
    return x.slice(1, 0, x.size(1) / factor_ * factor_, factor_);
  }
  const at::Tensor image = x.unflatten(1, {rows, columns});
  if (sampling_ == KvSampling::kConv) {
    const at::Tensor cells = sr->forward(image.permute({0, 3, 1, 2}));  // [B, C, rows', columns']
    return tapped(norm->forward(cells.flatten(2).transpose(1, 2)));
  }
  return image.slice(1, 0, rows / factor_ * factor_, factor_)
      .slice(2, 0, columns / factor_ * factor_, factor_)
      .flatten(1, 2);
}

int64_t KvCompression::tokens_left(const TransformerConfig& config, int64_t rows, int64_t columns) {
  const int64_t factor = config.kv_compress_factor;
  return config.kv_compress == KvSampling::kUniformEvery ? rows * columns / factor
                                                         : (rows / factor) * (columns / factor);
}

std::vector<at::Tensor> KvCompression::gradients() const {
  if (!sr) {
    return {};
  }
  return {sr->weight.grad, sr->bias.grad, norm->weight.grad, norm->bias.grad};
}

bool compresses_kv(const TransformerConfig& config, int64_t block) {
  if (config.kv_compress == KvSampling::kNone) {
    return false;
  }
  return config.kv_compress_layers.empty()
             ? block >= config.depth / 2
             : std::ranges::count(config.kv_compress_layers, block) > 0;
}

}  // namespace kinora::models
