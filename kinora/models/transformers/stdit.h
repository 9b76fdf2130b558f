#pragma once

#include "kinora/models/transformers/caption_model.h"

namespace kinora::models {

/// STDiT's block: within frames, through time, cross attention, MLP. The attention through time
/// reads the tokens as they are, without norm or modulation, and has the gate of that within
/// frames: so it was published and trained.
class STDiTBlock : public CaptionBlock {
 public:
  explicit STDiTBlock(const TransformerConfig& config);
  /// time_positions: fp32 [1, T, 1, C]; undefined but in the first block.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, int64_t tokens_a_frame,
                                   const at::Tensor& time_positions) const;

  // For the fast path; vector 6 is the gate of the attention through time.
  [[nodiscard]] ops::Block fast(const FastPass& pass, const at::Tensor& time_positions) const;
  [[nodiscard]] at::Tensor table() const;  ///< [7, C]
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  nn::SelfAttention attn_temp;  // NOLINT(readability-identifier-naming)
};

/// STDiT of Open-Sora 1.0, for clips of one size; an image is a clip that is its first frame.
/// Frames that are given (Conditions::frame_mask) are modulated as at t = 0, the gate of the
/// attention through time included.
class STDiT : public CaptionModel {
 public:
  explicit STDiT(const ModelConfig& config);
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

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  at::Tensor pos_embed;           // [1, S, C]
  at::Tensor pos_embed_temporal;  // [1, T, C]
  BlockList<STDiTBlock> blocks;
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace kinora::models
