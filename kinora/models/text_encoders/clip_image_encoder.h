#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/clip_block.h"

namespace kinora::models {

/// As transformers' CLIPVisionConfig names and starts it: ViT-B/32.
struct ClipImageConfig {
  int64_t hidden_size = 768;
  int64_t intermediate_size = 3072;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t image_size = 224;  ///< pixels a side
  int64_t patch_size = 32;   ///< of which as many go in as are whole
  Activation activation = Activation::kQuickGelu;
  double layer_norm_eps = 1e-5;
  int64_t projection_dim = 512;  ///< 0: there is no projection (CLIPVisionModel)
};

/// The image tower of CLIP (Radford et al. 2021; transformers' CLIPVisionModelWithProjection, or
/// CLIPVisionModel without the projection): a ViT over patches behind a class token, whose last
/// state is projected. It lies beside the text tower, whose blocks it shares. Parameters are named
/// as CLIPModel's.
class ClipImageEncoder : public nn::Module {
 public:
  /// kConfig: patches larger than the picture; errors of ClipBlock.
  explicit ClipImageEncoder(const ClipImageConfig& config);

  /// pixels: fp32 [B, 3, S, S], normalised as CLIP wants it (pipelines/clip_file.h). Returns fp32
  /// [B, projection_dim], not normalised; needs the projection. kShape for other sizes.
  /// Differentiable in the parameters.
  [[nodiscard]] at::Tensor forward(const at::Tensor& pixels) const;

  /// The states behind the block before the last, the class token's first: fp32 [B, 1 + N, C] of N
  /// patches.
  [[nodiscard]] at::Tensor states(const at::Tensor& pixels) const;

  [[nodiscard]] const ClipImageConfig& config() const { return config_; }

  nn::Parameter class_embedding;     ///< [C]
  nn::Parameter patch_embedding;     ///< [C, 3, P, P]
  nn::Parameter position_embedding;  ///< [1 + patches, C]
  nn::LayerNorm pre_layer_norm;
  std::vector<std::unique_ptr<ClipBlock>> blocks;
  nn::LayerNorm post_layer_norm;
  std::optional<TextLinear> visual_projection;

 private:
  /// The states behind so many blocks.
  [[nodiscard]] at::Tensor run(const at::Tensor& pixels, size_t num_blocks) const;

  ClipImageConfig config_;
};

}  // namespace kinora::models
