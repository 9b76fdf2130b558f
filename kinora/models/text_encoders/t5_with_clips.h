#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/t5_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::models {

/// A T5 with one CLIP or two beside it, as one encoder: Flux (T5's states, CLIP's pooled vector)
/// and Stable Diffusion 3 (Esser et al. 2024, section 5.2.1). Of two CLIPs, channels of the states
/// before the last block lie one behind the other, filled up with zeros to T5's width, and stand
/// before T5's states; of one only the pooled vector is read. A text has T5's tokens, and then as
/// many as a CLIP takes for each of them, padded. Parameters lie below child_name().
class T5WithClips : public TextEncoder {
 public:
  /// kConfig for no CLIP or more than two, for CLIPs that read unlike numbers of tokens, and for
  /// states that are wider than T5's.
  T5WithClips(const std::vector<ClipTextConfig>& clips, const T5Config& t5);

  /// "text_encoder", "text_encoder_2", ...: the CLIPs', and then T5's.
  [[nodiscard]] static std::string child_name(size_t number);

  /// `layer` is T5's. kShape for a text that has no token of T5.
  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;

  [[nodiscard]] int64_t num_blocks() const override;
  [[nodiscard]] int64_t width() const override { return t5_.width(); }
  [[nodiscard]] int64_t pooled_width() const override;
  /// T5's.
  [[nodiscard]] int64_t vocab_size() const override { return t5_.vocab_size(); }
  [[nodiscard]] TokensBeside beside() const override;
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override;
  [[nodiscard]] std::vector<TextLinear*> linears() override;

 private:
  [[nodiscard]] bool give_states() const { return clips_.size() > 1; }
  /// An encoder by its number, T5 the last.
  [[nodiscard]] TextEncoder& encoder(size_t number) const;
  [[nodiscard]] size_t count() const { return clips_.size() + 1; }

  std::vector<std::unique_ptr<ClipTextEncoder>> clips_;
  mutable T5Encoder t5_;
};

}  // namespace kinora::models
