#pragma once

#include <optional>
#include <vector>

#include "kinora/models/transformers/block_model.h"
#include "kinora/models/transformers/caption_encoder.h"
#include "kinora/models/transformers/video_layers.h"

namespace kinora::models {

// NOLINTBEGIN(readability-identifier-naming): members are named as the published checkpoints' keys

/// Projects the vector of a caption, fp32: [B, D] -> [B, C]. The buffer y_embedding [1, D] stands
/// for that of null captions. It starts at zero; as published it is the text encoder's vector of
/// the empty text.
class TextEmbedder : public nn::Module {
 public:
  explicit TextEmbedder(const ModelConfig& config);
  /// null_text: bool [B]; undefined: none is null.
  [[nodiscard]] at::Tensor forward(const at::Tensor& pooled, const at::Tensor& null_text) const;

 private:
  nn::Linear output_projection;
  at::Tensor y_embedding;
};

/// VDiT of OpenDiT: DiT over clips of one size, with attention among all tokens of a clip, from one
/// vector a caption, or from captions that a text encoder of its own reads. An image is a clip that
/// is its first frame.
class VDiT : public BlockModel {
 public:
  explicit VDiT(const ModelConfig& config);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);
  void to_device(const at::Device& device) override;

 protected:
  /// Among which tokens a block attends.
  [[nodiscard]] virtual nn::Span span_of(int64_t /*block*/) const { return nn::Span::kClip; }
  /// The block before which tokens get their position in time.
  [[nodiscard]] virtual int64_t first_block_in_time() const { return 0; }

 private:
  /// Needs pooled, with a text encoder tokens and text_lengths.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;

  void check_inputs(const at::Tensor& x_t, const at::Tensor& t,
                    const diffusion::Conditions& conditions) const;
  /// kShape where the captions are not [B, ...] as the model reads them.
  void check_captions(int64_t batch, const diffusion::Conditions& conditions) const;

  PatchEmbed x_embedder;
  TimestepEmbedder t_embedder;
  std::optional<CaptionEncoder> text_encoder;
  TextEmbedder y_embedder;
  at::Tensor pos_embed_spatial;   // [1, S, C]
  at::Tensor pos_embed_temporal;  // [1, T, C]
  BlockList<DiTBlock> blocks;
  FinalLayer final_layer;
};

// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
