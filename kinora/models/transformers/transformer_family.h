#pragma once

#include "kinora/models/model_config.h"

namespace kinora::models {

// What the rows of transformers in families.cc share; their shape is declared in families.h.

/// Family::resolve: depth, width, heads, patch, and that the family reads what is set (own_keys).
void resolve_transformer(ModelConfig& config, const ModelConfig& published);

/// kConfig where a key is set that only some transformers read and the family does not.
void check_own_keys(const ModelConfig& config);

/// Multiply-accumulates of what transformers are made of, of one sample with captions of full
/// length: the parts of their forward_macs().
struct TransformerMacs {
  explicit TransformerMacs(const ModelConfig& config);

  /// Of all tokens, each of which meets `keys` others; with projections.
  [[nodiscard]] double attention(double keys) const;
  /// A model whose blocks take that many: with its embedders and final layer.
  [[nodiscard]] double model(double block) const { return depth * block + ends; }

  double depth;
  double hidden;
  double frames;           ///< of patches
  double places;           ///< in a frame
  double tokens;           ///< all: frames * places
  double mlp;              ///< of all tokens
  double cross_attention;  ///< of all tokens
  double modulation;       ///< the six vectors of a block
  double captions;         ///< their embedding
  double ends;             ///< patches, time and the final layer
};

/// Whether a frozen text encoder reads padding behind captions, which the model does not: that of
/// LTX-Video before 0.9.5.
[[nodiscard]] bool fills_captions(const ModelConfig& config);

}  // namespace kinora::models
