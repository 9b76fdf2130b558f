#pragma once

#include <optional>
#include <vector>

#include "kinora/models/transformers/caption_model.h"
#include "kinora/models/transformers/joined_heads.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"

namespace kinora::models {

// Members that hold parameters are named as those of the other models of clips.
// NOLINTBEGIN(readability-identifier-naming)

/// Attention among all tokens, to the text behind a norm of its own, MLP.
class WanBlock : public nn::Module {
 public:
  explicit WanBlock(const TransformerConfig& config);
  /// tokens: as JoinedSelfAttention's; num_images: of conditions.text, as JoinedTextAttention's.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, const ClipTokens& tokens,
                                   int64_t num_images) const;
  /// The norm that attention reads.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& x, const BlockConditions& conditions) const;
  /// The learned part of the block's vectors: [6, C].
  [[nodiscard]] at::Tensor table() const;

  // For the fast path.
  [[nodiscard]] ops::Block fast(const FastPass& pass, const ClipTokens& tokens,
                                const ops::HeadRule& rotation, int64_t num_images) const;
  /// The vectors of the norm before the text's attention: shift and scale, [2, C].
  [[nodiscard]] at::Tensor norm_vectors() const;
  [[nodiscard]] const JoinedTextAttention& cross_attention() const { return cross_attn; }
  /// Those that can compute in fp8, in order.
  [[nodiscard]] std::vector<nn::Linear*> linears() { return joined_linears(attn, cross_attn, mlp); }

 private:
  JoinedSelfAttention attn;
  nn::LayerNorm cross_norm;
  JoinedTextAttention cross_attn;
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
  [[nodiscard]] at::Tensor norm_vectors(int64_t use) const override;
  /// The states of images before those of the text: [B, M + text_tokens, C].
  [[nodiscard]] at::Tensor fast_texts(const diffusion::Conditions& conditions) const override;
  /// All are read.
  [[nodiscard]] at::Tensor fast_text_lengths(
      const diffusion::Conditions& /*conditions*/) const override {
    return {};
  }
  /// M.
  [[nodiscard]] int64_t num_images(const diffusion::Conditions& conditions) const;
  /// Captions of text_tokens states, projected: [B, text_tokens, C].
  [[nodiscard]] at::Tensor filled_text(const diffusion::Conditions& conditions) const;

  std::optional<WanImageEmbedder> image_embedder;
  BlockList<WanBlock> blocks;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
