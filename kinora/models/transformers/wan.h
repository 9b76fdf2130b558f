#pragma once

#include <optional>
#include <vector>

#include "kinora/models/transformers/caption_model.h"
#include "kinora/models/transformers/joined_heads.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/rms_norm.h"

namespace kinora::models {

// Members that hold parameters are named as those of the other models of clips.
// NOLINTBEGIN(readability-identifier-naming)

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

/// What attention to the given frames has beside that to the text, whose queries it has: keys
/// image_kv_linear, image_k_norm.
class WanImageKeys : public nn::Module {
 public:
  explicit WanImageKeys(const TransformerConfig& config);
  /// q: [B, H, N, D]; images: [B, M, C]. Returns [B, N, C].
  [[nodiscard]] at::Tensor attend(const at::Tensor& q, const at::Tensor& images) const;

 private:
  nn::Linear image_kv_linear;  // [2 C, C]
  nn::RmsNorm image_k_norm;
};

/// Attention of a clip's tokens to all of a text, and to the states of the given frames where the
/// model reads them: keys q_linear, kv_linear, proj, those of JoinedHeadNorms and of WanImageKeys.
class WanTextAttention : public nn::Module {
 public:
  explicit WanTextAttention(const TransformerConfig& config);
  /// x: [B, T, S, C]; context: [B, M + L, C], the M states of images first. Returns [B, T, S, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& context,
                                   int64_t num_images) const;

 private:
  int64_t num_heads_;
  nn::Linear q_linear;   // [C, C]
  nn::Linear kv_linear;  // [2 C, C]
  nn::Linear proj;       // [C, C]
  JoinedHeadNorms norms_;
  std::optional<WanImageKeys> images_;
};

/// Attention among all tokens, to the text behind a norm of its own, MLP.
class WanBlock : public nn::Module {
 public:
  explicit WanBlock(const TransformerConfig& config);
  /// rotary: as WanSelfAttention's; num_images: of conditions.text, as WanTextAttention's.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, const at::Tensor& rotary,
                                   int64_t num_images) const;
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

/// Projects the states of an image encoder: keys positions (where there is a table), norm1, fc1,
/// fc2, norm2.
class WanImageEmbedder : public nn::Module {
 public:
  explicit WanImageEmbedder(const TransformerConfig& config);
  /// states: fp32 [B, M, image_channels]. Returns [B, M, C]. kShape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& states) const;

 private:
  int64_t channels_;
  nn::Parameter positions;  // [image_positions, image_channels]; of none no shape
  nn::LayerNorm norm1;
  nn::Linear fc1;  // [image_channels, image_channels]
  nn::Linear fc2;  // [C, image_channels]
  nn::LayerNorm norm2;
};

/// The transformer of Wan (Wan team 2025, "Wan: open and advanced large-scale video generative
/// models"): attention over whole clips with rotary positions over frames, rows and columns, and
/// captions that are filled up with zeros, which are attended to as the rest. Of image to video x_t
/// has channels beside it (ShownInput::kFrames), and blocks may also read the states of the given
/// frames (model.image_channels).
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
  /// Needs text, and beside and image_prompt where the model has them.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor table(int64_t use) const override;
  /// Captions of text_tokens states, projected: [B, text_tokens, C].
  [[nodiscard]] at::Tensor filled_text(const diffusion::Conditions& conditions) const;

  std::optional<WanImageEmbedder> image_embedder;
  BlockList<WanBlock> blocks;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
