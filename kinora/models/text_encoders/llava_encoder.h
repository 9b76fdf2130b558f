#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/clip_image_encoder.h"
#include "kinora/models/text_encoders/llama_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::models {

/// As transformers' LlavaConfig names it, with what is read of its states.
struct LlavaConfig {
  LlamaConfig text{};
  ClipImageConfig image{};  ///< without projection
  int64_t image_token_id = 32000;
  Activation projector_activation = Activation::kGelu;
  bool projector_bias = true;

  /// Of the picture's states every so manieth is read, of the tokens around a caption none: so many
  /// of the first, and so many before the last one, or where the text was cut off of the last.
  int64_t stride = 1;
  int64_t tokens_before = 0;
  int64_t tokens_behind = 0;
};

/// A Llama that reads a picture with its texts (Liu et al. 2023, "Visual instruction tuning";
/// transformers' LlavaModel): in the place of a text's picture token stand the states of all places
/// of the picture behind the block before the last of CLIP's image tower, without its class token,
/// projected by two linears. As HunyuanVideo reads it the picture's states come first, and then the
/// caption's. Parameters lie below vision_tower, multi_modal_projector and language_model.
class LlavaEncoder : public TextEncoder {
 public:
  /// kConfig: errors of both parts.
  explicit LlavaEncoder(const LlavaConfig& config);

  /// Of show()'s picture. kShape, too, for a text without one picture token, or without a caption
  /// within what is left out.
  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;

  [[nodiscard]] int64_t picture_side() const override { return config_.image.image_size; }
  void show(const at::Tensor& pixels) override;

  [[nodiscard]] std::string kind() const override { return "Llava"; }
  [[nodiscard]] int64_t num_blocks() const override { return language_model_.num_blocks(); }
  [[nodiscard]] int64_t width() const override { return language_model_.width(); }
  [[nodiscard]] int64_t pooled_width() const override { return 0; }
  [[nodiscard]] int64_t vocab_size() const override { return language_model_.vocab_size(); }
  [[nodiscard]] TokensBeside beside() const override;
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override;
  [[nodiscard]] std::vector<TextLinear*> linears() override { return language_model_.linears(); }

 private:
  /// States of a picture.
  [[nodiscard]] int64_t num_places() const;

  LlavaConfig config_;
  ClipImageEncoder vision_tower_;
  TextLinear linear_1_;
  TextLinear linear_2_;
  LlamaEncoder language_model_;
  at::Tensor picture_;  // fp32 [num_places(), width()]; undefined: none is shown
};

}  // namespace kinora::models
