#pragma once

#include "kinora/models/transformers/dit.h"
#include "kinora/models/transformers/joint_layers.h"
#include "kinora/models/transformers/video_layers.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/module.h"

/// How HunyuanVideo (Kong et al. 2024) embeds the states of a language model, which has read each
/// token without those behind it: a small transformer in which all of a caption's tokens see each
/// other.
///
/// Shapes: B batch, L text tokens, C hidden.
namespace kinora::models {

// Members that hold parameters are named as the keys of the other multimodal transformers.
// NOLINTBEGIN(readability-identifier-naming)

/// x + gate * attention(norm1(x)), then x + gate * fc2(SiLU(fc1(norm2(x)))): keys norm1, attn,
/// norm2, mlp and adaLN_modulation, which makes the two gates.
class RefinerBlock : public nn::Module {
 public:
  explicit RefinerBlock(const TransformerConfig& config);
  /// x: fp32 [B, 1, L, C]; condition: [B, C]; is_read: bool [B, 1, 1, L], the keys that are seen.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& condition,
                                   const at::Tensor& is_read) const;

 private:
  nn::LayerNorm norm1;
  StreamAttention attn;
  nn::LayerNorm norm2;
  nn::Mlp mlp;
  Modulation adaLN_modulation;
};

/// The states of captions to tokens of the text's stream, by blocks whose gates hang on the time
/// and on the mean of the states: keys t_embedder, y_embedder, proj_in and blocks.
class TokenRefiner : public nn::Module {
 public:
  explicit TokenRefiner(const ModelConfig& config);
  /// text: [B, L, text_channels]; lengths: int64 [B], how many tokens of each are read; t: [B].
  /// Returns fp32 [B, L, C]; what it has behind a caption's end is nothing.
  [[nodiscard]] at::Tensor forward(const at::Tensor& text, const at::Tensor& lengths,
                                   const at::Tensor& t) const;
  /// Multiply-accumulates, beside those of the first linear.
  [[nodiscard]] static double macs(const ModelConfig& config);

 private:
  TimestepEmbedder t_embedder;
  VectorEmbedder y_embedder;
  nn::Linear proj_in;
  int64_t depth_;
  BlockList<RefinerBlock> blocks;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
