#pragma once

#include <vector>

#include "kinora/models/transformers/caption_model.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/rms_norm.h"

namespace kinora::models {

// Members that hold parameters are named as those of the other models of clips.
// NOLINTBEGIN(readability-identifier-naming)

/// RMSNorm of queries and of keys over all heads together: keys q_norm, k_norm, [C].
class JoinedHeadNorms : public nn::Module {
 public:
  explicit JoinedHeadNorms(const TransformerConfig& config);

  nn::RmsNorm q_norm;
  nn::RmsNorm k_norm;
};

/// Attention of a clip's tokens to each other: keys qkv, proj and those of JoinedHeadNorms.
class WanSelfAttention : public nn::Module {
 public:
  explicit WanSelfAttention(const TransformerConfig& config);
  /// x: [B, T, S, C]; rotary: fp32 [T S, D] for nn::rotated. Returns [B, T, S, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& rotary) const;

 private:
  int64_t num_heads_;
  nn::Linear qkv;   // [3 C, C]
  nn::Linear proj;  // [C, C]
  JoinedHeadNorms norms_;
};

/// Attention of a clip's tokens to all of a text: keys q_linear, kv_linear, proj and those of
/// JoinedHeadNorms.
class WanTextAttention : public nn::Module {
 public:
  explicit WanTextAttention(const TransformerConfig& config);
  /// x: [B, T, S, C]; text: [B, L, C]. Returns [B, T, S, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& text) const;

 private:
  int64_t num_heads_;
  nn::Linear q_linear;   // [C, C]
  nn::Linear kv_linear;  // [2 C, C]
  nn::Linear proj;       // [C, C]
  JoinedHeadNorms norms_;
};

/// Attention among all tokens, to the text behind a norm of its own, MLP.
class WanBlock : public nn::Module {
 public:
  explicit WanBlock(const TransformerConfig& config);
  /// rotary: as WanSelfAttention's.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, const at::Tensor& rotary) const;
  /// The norm that attention reads.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& x, const BlockConditions& conditions) const;
  /// The learned part of the block's vectors: [6, C].
  [[nodiscard]] at::Tensor table() const;

 private:
  WanSelfAttention attn;
  nn::LayerNorm cross_norm;
  WanTextAttention cross_attn;
  nn::Mlp mlp;
  nn::Parameter scale_shift_table;  // [6, C]
};

/// The transformer of Wan 2.1 (Wan team 2025, "Wan: open and advanced large-scale video generative
/// models"): attention over whole clips with rotary positions over frames, rows and columns, and
/// captions that are filled up with zeros, which are attended to as the rest.
class Wan : public CaptionModel {
 public:
  explicit Wan(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

  /// Of which a null caption is the first row, as an empty caption is one token.
  [[nodiscard]] at::Tensor null_caption() const override;

 private:
  /// Needs text.
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] std::vector<at::Tensor> tables() const override;
  /// Captions of text_tokens states, projected: [B, text_tokens, C].
  [[nodiscard]] at::Tensor filled_text(const diffusion::Conditions& conditions) const;

  BlockList<WanBlock> blocks;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
