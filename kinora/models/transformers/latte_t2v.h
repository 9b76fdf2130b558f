#pragma once

#include <vector>

#include "kinora/models/transformers/caption_model.h"

namespace kinora::models {

/// The second block of LatteT2V's pairs: attention through time and MLP, no caption.
class TimeBlock : public nn::Module {
 public:
  explicit TimeBlock(const TransformerConfig& config);

  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, int64_t tokens_a_frame) const;

  // For the fast path.
  [[nodiscard]] ops::Block fast(const FastPass& pass) const;
  [[nodiscard]] at::Tensor table() const;  ///< [6, C]
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  // NOLINTBEGIN(readability-identifier-naming): named as the other blocks' keys
  nn::SelfAttention attn;
  nn::Mlp mlp;
  nn::Parameter scale_shift_table;  // [6, C]
  // NOLINTEND(readability-identifier-naming)
};

/// Latte-1 of Ma et al. 2024 as it draws from text (LatteT2V; diffusers' LatteTransformer3DModel):
/// pairs of PixArt's block within frames and a block through time. Frames get their positions
/// before the first block through time. For clips of one size; an image is a clip of one frame.
class LatteT2V : public CaptionModel {
 public:
  explicit LatteT2V(const ModelConfig& config);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

 private:
  /// Needs text.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor table(int64_t use) const override;

  // NOLINTBEGIN(readability-identifier-naming): named as the other models' keys
  at::Tensor pos_embed;           // [1, S, C]
  at::Tensor pos_embed_temporal;  // [1, T, C]
  BlockList<CaptionBlock> spatial_blocks;
  BlockList<TimeBlock> temporal_blocks;
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace kinora::models
