#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/data/source.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::pipelines {

/// Texts as a model takes them.
struct EncodedTexts {
  at::Tensor states;  ///< fp32 [B, L, D], zero behind a text's length
  at::Tensor pooled;  ///< fp32 [B, D2]; undefined where the encoder has none
};

/// Encodes the tokens of batches by a frozen text encoder. What pads them is not computed.
class TextBatchEncoder {
 public:
  /// Borrows the encoder. micro_batch: texts that it computes at once.
  TextBatchEncoder(models::TextEncoder& encoder, int64_t micro_batch)
      : encoder_(encoder), micro_batch_(micro_batch) {}

  /// Of texts with room for `length` tokens.
  [[nodiscard]] data::TextShape shape_of(int64_t length) const {
    return {.length = encoder_.num_states(length),
            .channels = encoder_.width(),
            .pooled_channels = encoder_.pooled_width()};
  }
  /// States of a text of so many tokens.
  [[nodiscard]] int64_t num_states(int64_t tokens) const { return encoder_.num_states(tokens); }

  /// tokens: int64 [B, L] on the host, of which the first lengths[i] of row i count. The result
  /// lies where the encoder does. Errors of TextEncoder::encode().
  [[nodiscard]] EncodedTexts encode(const at::Tensor& tokens, const at::Tensor& lengths) const;

 private:
  models::TextEncoder& encoder_;
  int64_t micro_batch_;
};

}  // namespace kinora::pipelines
