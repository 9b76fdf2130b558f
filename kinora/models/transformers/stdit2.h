#pragma once

#include "kinora/models/transformers/caption_model.h"

namespace kinora::models {

/// STDiT2's block: STDiT's, whose attention through time has a norm and modulation of its own and a
/// rotary embedding, behind which queries and keys are normed.
class STDiT2Block : public CaptionBlock {
 public:
  explicit STDiT2Block(const TransformerConfig& config);
  /// conditions.vectors: [B, T or 1, 9, C], the last three of the attention through time. rotary:
  /// fp32 [T, 1, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, int64_t tokens_a_frame,
                                   const at::Tensor& rotary) const;

  // For the fast path; the vectors of the attention through time are 6 to 8.
  [[nodiscard]] ops::Block fast(const FastPass& pass, const at::Tensor& rotary) const;
  [[nodiscard]] at::Tensor table() const;  ///< [9, C]
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  nn::SelfAttention attn_temp;
  nn::Parameter scale_shift_table_temporal;  // [3, C]
  // NOLINTEND(readability-identifier-naming)
};

/// STDiT2 of Open-Sora 1.1, for clips of any size, which it is told.
class STDiT2 : public CaptionModel {
 public:
  explicit STDiT2(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

 private:
  /// Needs text, fps, height, width, num_frames.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor table(int64_t use) const override;

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  Modulation t_block_temp;
  Rope rope;
  BlockList<STDiT2Block> blocks;
  SizeEmbedder csize_embedder;
  SizeEmbedder ar_embedder;
  SizeEmbedder fl_embedder;
  SizeEmbedder fps_embedder;
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace kinora::models
