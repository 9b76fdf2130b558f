#pragma once

#include "kinora/models/model_config.h"
#include "kinora/models/text_encoders/t5_encoder.h"

namespace kinora::models {

/// The text encoder that a model of captions has for its own (ModelConfig::text_encoder) and that
/// learns with it; fp32.
class CaptionEncoder : public T5Encoder {
 public:
  /// Of a model whose config.text_encoder.any().
  explicit CaptionEncoder(const ModelConfig& config);

  /// tokens: int64 [B, L], L at most config.text_tokens; lengths: int64 [B], from 1 to L. Returns
  /// fp32 [B, L, width], whose rows behind a text's length say nothing.
  [[nodiscard]] at::Tensor embed_captions(const at::Tensor& tokens,
                                          const at::Tensor& lengths) const;

  /// The mean of a caption's rows: fp32 [B, width].
  [[nodiscard]] at::Tensor pool_captions(const at::Tensor& tokens, const at::Tensor& lengths) const;

  /// Multiply-accumulates of a caption of full length.
  [[nodiscard]] static double macs(const ModelConfig& config);

  /// What is not a parameter.
  void to_device(const at::Device& device);

 private:
  at::Tensor buckets_;  // of the longest caption: int64 [2 text_tokens - 1]
};

}  // namespace kinora::models
