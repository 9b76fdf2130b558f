#pragma once

#include <optional>

#include "kinora/models/transformers/caption_model.h"
#include "kinora/models/transformers/kv_compression.h"

namespace kinora::models {

/// PixArt's block, whose attention may have fewer keys and values.
class PixArtBlock : public CaptionBlock {
 public:
  /// number: of the blocks, from 0.
  PixArtBlock(const TransformerConfig& config, int64_t number);

  /// Of an image of that grid; x: [B, 1, S', C].
  [[nodiscard]] Attend attend(const nn::Sequence& sequence, const Grid& grid) const;
  /// For the fast path: with that branch of attention. Fewer keys and values are a function of
  /// libtorch's calls within the stack.
  [[nodiscard]] ops::Block fast(const FastPass& pass, const Grid& grid) const;

 private:
  std::optional<KvCompression> kv_compression_;  // its keys lie under attn
};

/// PixArt-alpha (Chen et al. 2023) and PixArt-Sigma (2024): images from captions. Positions are
/// made for the configured size; images of other sizes are stretched to it. size_conditions: the
/// multi-scale models, which are told height, width and their ratio.
class PixArt : public CaptionModel {
 public:
  explicit PixArt(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

 private:
  /// Needs text, and with size_conditions height and width. x_t: [B, C, H, W], or a clip of one
  /// frame.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor table(int64_t use) const override;

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  at::Tensor pos_embed;  // [1, S, C]
  BlockList<PixArtBlock> blocks;
  std::optional<SizeEmbedder> csize_embedder;
  std::optional<SizeEmbedder> ar_embedder;
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace kinora::models
