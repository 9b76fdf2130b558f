#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/activation.h"
#include "kinora/models/text_encoders/clip_block.h"
#include "kinora/models/text_encoders/text_encoder.h"

namespace kinora::models {

/// As transformers' CLIPTextConfig names and starts it: ViT-B/32.
struct ClipTextConfig {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 512;
  int64_t intermediate_size = 2048;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 8;
  int64_t max_position_embeddings = 77;
  Activation activation = Activation::kQuickGelu;
  double layer_norm_eps = 1e-5;
  int64_t projection_dim = 0;  ///< of the pooled vector; 0: it is not projected
  /// A text is pooled where this token stands for the first time. 2 is the old rule: where its
  /// largest id does, which is the end's in the published vocabulary.
  int64_t eos_token_id = 49407;
};

/// The text tower of CLIP (transformers' CLIPTextModel and CLIPTextModelWithProjection). A token
/// sees itself and those before it, so padding behind the end changes no state before it.
class ClipTextEncoder : public TextEncoder {
 public:
  explicit ClipTextEncoder(const ClipTextConfig& config);

  /// A text beyond the positions is pieces of piece() tokens, each with an end of its own: they are
  /// encoded by themselves, and their states stand one behind the other.
  /// pooled: the normed last state at each text's end, projected where there is a projection,
  /// whatever `layer` is; of pieces the first one's. kShape also for texts without an end, and for
  /// long ones that are not in pieces.
  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;

  [[nodiscard]] const ClipTextConfig& config() const { return config_; }
  [[nodiscard]] std::string kind() const override { return "CLIP"; }
  [[nodiscard]] int64_t num_blocks() const override { return config_.num_hidden_layers; }
  [[nodiscard]] int64_t width() const override { return config_.hidden_size; }
  [[nodiscard]] int64_t pooled_width() const override;
  [[nodiscard]] int64_t vocab_size() const override { return config_.vocab_size; }
  [[nodiscard]] std::optional<int64_t> piece() const override {
    return config_.max_position_embeddings;
  }
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override {
    return {{"text_model.embeddings.token_embedding.weight", &token_embedding}};
  }
  [[nodiscard]] std::vector<TextLinear*> linears() override;

  /// Where the end of the text at begin, ..., end - 1 stands: ClipTextConfig::eos_token_id; `end`
  /// where it has none.
  [[nodiscard]] std::vector<int64_t>::const_iterator find_end(
      std::vector<int64_t>::const_iterator begin, std::vector<int64_t>::const_iterator end) const;
  /// Adds tokens behind the vocabulary, frozen: their embeddings, [tokens, C].
  void add_tokens(const at::Tensor& embeddings);

  nn::Parameter token_embedding;     ///< [vocab_size, C]
  nn::Parameter position_embedding;  ///< [max_position_embeddings, C]
  std::vector<std::unique_ptr<ClipBlock>> blocks;
  nn::LayerNorm final_layer_norm;
  std::optional<TextLinear> text_projection;

 private:
  /// Of each piece of each text its length.
  [[nodiscard]] std::vector<int64_t> piece_lengths(const TextTokens& tokens) const;
  /// The row of the end of each text's first piece, int64 on the CPU.
  [[nodiscard]] at::Tensor end_rows(const TextTokens& tokens) const;

  ClipTextConfig config_;
};

}  // namespace kinora::models
