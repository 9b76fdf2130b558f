#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::models {

/// SDXL's two text towers of CLIP as one encoder (Podell et al. 2023, section 2.1): channels of the
/// states lie one behind the other, and the second pools. Both read the same tokens, but each its
/// own padding. Parameters lie below text_encoder. and text_encoder_2.
class JointTextEncoder : public TextEncoder {
 public:
  static constexpr const char* kChildren[] = {"text_encoder", "text_encoder_2"};

  /// pad_id: what the second reads behind the end of a text, where the first reads what is there.
  /// kConfig where the towers differ in vocabulary or positions.
  JointTextEncoder(const ClipTextConfig& first, const ClipTextConfig& second, int64_t pad_id);

  /// As ClipTextEncoder's, of both: `layer` counts from the end of each.
  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;

  [[nodiscard]] std::string kind() const override { return "CLIP"; }
  [[nodiscard]] int64_t num_blocks() const override {
    return first_.num_blocks() + second_.num_blocks();
  }
  [[nodiscard]] int64_t width() const override { return first_.width() + second_.width(); }
  [[nodiscard]] int64_t pooled_width() const override { return second_.pooled_width(); }
  [[nodiscard]] int64_t vocab_size() const override { return first_.vocab_size(); }
  [[nodiscard]] std::optional<int64_t> piece() const override { return first_.piece(); }
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override;
  [[nodiscard]] std::vector<TextLinear*> linears() override;

 private:
  /// The same with the second's padding.
  [[nodiscard]] TextTokens padded_for_second(const TextTokens& tokens) const;

  ClipTextEncoder first_;
  ClipTextEncoder second_;
  int64_t pad_id_;
};

}  // namespace kinora::models
