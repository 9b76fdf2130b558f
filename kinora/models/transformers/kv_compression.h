#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/models/transformers/transformer_config.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/self_attention.h"

namespace kinora::models {

/// PixArt-Sigma's compression of keys and values (Chen et al. 2024, section 2.3): every cell of
/// factor x factor tokens of an image becomes one, while all tokens stay queries. What a cell that
/// is not whole holds is left out, as published; norms of heads (qk_norm) come behind, as Open-Sora
/// has them. Keys, of kConv alone: sr [C, 1, factor, factor],
/// the mean of a cell at first, and norm.
///
/// Shapes: B images, N = rows * columns tokens, C width.
class KvCompression : public nn::Module {
 public:
  /// sampling: not kNone.
  KvCompression(int64_t hidden, KvSampling sampling, int64_t factor);

  /// Self-attention of each image. x: [B, N, C]; returns the same.
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  int64_t rows, int64_t columns) const;

  /// Keys or values [B, N, C] of which fewer are left: [B, N', C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, int64_t rows, int64_t columns) const;

  /// How many are left of rows * columns.
  [[nodiscard]] static int64_t tokens_left(const TransformerConfig& config, int64_t rows,
                                           int64_t columns);

  /// What attend() adds to in backward besides those of the attention.
  [[nodiscard]] std::vector<at::Tensor> gradients() const;

 private:
  KvSampling sampling_;
  int64_t factor_;
  // Named as the published checkpoints' keys.
  std::optional<nn::Conv> sr;         // NOLINT(readability-identifier-naming)
  std::optional<nn::LayerNorm> norm;  // NOLINT(readability-identifier-naming)
};

/// Which blocks compress theirs: of kv_compress_layers, or the second half. By number.
[[nodiscard]] bool compresses_kv(const TransformerConfig& config, int64_t block);

}  // namespace kinora::models
