#pragma once

#include "kinora/models/model_config.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"

namespace kinora::models {

/// A CLIP that learns with the model (TextEncoderSize::Kind::kClip); fp32.
class OwnClip : public ClipTextEncoder {
 public:
  explicit OwnClip(const TextEncoderSize& size);

  /// tokens: int64 [B, L], L at most the positions, padding among them. Returns the normed last
  /// states, fp32 [B, L, width]. Nothing is read on the host.
  [[nodiscard]] at::Tensor embed(const at::Tensor& tokens) const;

  /// Embeddings of the tokens from vocab_size() on, [size.new_tokens, C]; a parameter if there are
  /// any.
  nn::Parameter new_tokens;

 private:
  [[nodiscard]] at::Tensor embed_tokens(const at::Tensor& tokens) const;
};

}  // namespace kinora::models
