#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::models {

/// An encoder with one CLIP or two beside it, as one: Flux (T5's states, CLIP's pooled vector),
/// Stable Diffusion 3 (Esser et al. 2024, section 5.2.1) and HunyuanVideo (a language model's
/// states, perhaps of a picture too, CLIP's pooled vector). Of two CLIPs, channels of the states
/// before the last block lie one behind the other, filled up with zeros to the main encoder's
/// width, and stand before its states; of one only the pooled vector is read. A text has the main
/// encoder's tokens, and then as many as a CLIP takes for each of them, padded. Parameters lie
/// below child_name().
class EncoderWithClips : public TextEncoder {
 public:
  /// main_number: of the main encoder among all. frame: what its texts stand in. kConfig for no
  /// CLIP or more than two, for CLIPs that read unlike numbers of tokens, and for states that are
  /// wider than the main encoder's.
  EncoderWithClips(const std::vector<ClipTextConfig>& clips, std::unique_ptr<TextEncoder> main,
                   size_t main_number, std::optional<CaptionFrame> frame = std::nullopt);

  /// "text_encoder", "text_encoder_2", ...
  [[nodiscard]] static std::string child_name(size_t number);

  /// `layer` is the main encoder's. kShape for a text that has no token of it, or none behind what
  /// the frame leaves out.
  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;
  [[nodiscard]] int64_t picture_side() const override { return main_->picture_side(); }
  void show(const at::Tensor& pixels) override { main_->show(pixels); }

  [[nodiscard]] std::string kind() const override { return main_->kind() + " and CLIP"; }
  [[nodiscard]] int64_t num_blocks() const override;
  [[nodiscard]] int64_t width() const override { return main_->width(); }
  [[nodiscard]] int64_t pooled_width() const override;
  /// The main encoder's.
  [[nodiscard]] int64_t vocab_size() const override { return main_->vocab_size(); }
  [[nodiscard]] TokensBeside beside() const override;
  [[nodiscard]] const CaptionFrame* frame() const override { return frame_ ? &*frame_ : nullptr; }
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override;
  [[nodiscard]] std::vector<TextLinear*> linears() override;

 private:
  [[nodiscard]] bool give_states() const { return clips_.size() > 1; }
  [[nodiscard]] int64_t left_out() const { return frame_ ? frame_->tokens : 0; }
  /// The main encoder's states without those that the frame leaves out.
  void leave_out(TextStates& states) const;

  std::vector<std::unique_ptr<ClipTextEncoder>> clips_;
  std::unique_ptr<TextEncoder> main_;
  std::optional<CaptionFrame> frame_;
  std::vector<TextEncoder*> all_;  // in the order of their numbers
};

}  // namespace kinora::models
