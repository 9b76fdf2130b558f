#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/activation.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/nn/rms_norm.h"

namespace kinora::models {

/// As transformers' LlamaConfig names and starts it.
struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;  ///< each is read by as many heads of queries
  int64_t head_dim = 128;
  Activation activation = Activation::kSilu;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
};

/// The turns of tokens at their places in their texts, fp32 [rows, 1, D / 2].
struct LlamaTurns {
  at::Tensor cosines;
  at::Tensor sines;
};

/// x + o(attention(norm(x))), then x + down(silu(gate(norm(x))) * up(norm(x))). A token sees itself
/// and those before it.
class LlamaBlock : public nn::Module {
 public:
  explicit LlamaBlock(const LlamaConfig& config);
  /// x: fp32 [rows, C]. Returns the same.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const RaggedRows& rows,
                                   const LlamaTurns& turns) const;
  [[nodiscard]] std::vector<TextLinear*> linears();

 private:
  [[nodiscard]] at::Tensor attended(const at::Tensor& normed, const RaggedRows& rows,
                                    const LlamaTurns& turns) const;

  // NOLINTBEGIN(readability-identifier-naming): named as transformers' keys
  TextLinear q_proj;
  TextLinear k_proj;
  TextLinear v_proj;
  TextLinear o_proj;
  TextLinear gate_proj;
  TextLinear up_proj;
  TextLinear down_proj;
  nn::RmsNorm input_layernorm;
  nn::RmsNorm post_attention_layernorm;
  // NOLINTEND(readability-identifier-naming)
  int64_t num_heads_;
  int64_t num_key_heads_;
  Activation activation_;
};

/// The language models LLaMA 1 to 3 (Touvron et al. 2023; Grattafiori et al. 2024) as encoders:
/// transformers' LlamaModel, without what predicts the next token. Rotary positions turn dims d and
/// d + D / 2 of a head together.
class LlamaEncoder : public TextEncoder {
 public:
  /// kConfig for heads that do not go into each other, and for a head of an odd number of channels.
  explicit LlamaEncoder(const LlamaConfig& config);

  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;
  /// The same where the rows `places`, int64 [n], of all texts' embeddings are `rows`, fp32 [n, C].
  /// Undefined: none.
  [[nodiscard]] TextStates encode_with(const TextTokens& tokens, const at::Tensor& places,
                                       const at::Tensor& rows, const TextLayer& layer);

  [[nodiscard]] std::string kind() const override { return "Llama"; }
  [[nodiscard]] int64_t num_blocks() const override { return config_.num_hidden_layers; }
  [[nodiscard]] int64_t width() const override { return config_.hidden_size; }
  [[nodiscard]] int64_t pooled_width() const override { return 0; }
  [[nodiscard]] int64_t vocab_size() const override { return config_.vocab_size; }
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override {
    return {{"embed_tokens.weight", &embed_tokens_}};
  }
  [[nodiscard]] std::vector<TextLinear*> linears() override;

 private:
  [[nodiscard]] LlamaTurns turns_of(const std::vector<int64_t>& lengths, at::Device device) const;

  LlamaConfig config_;
  nn::Parameter embed_tokens_;  // [vocab_size, hidden_size]
  std::vector<std::unique_ptr<LlamaBlock>> blocks_;
  nn::RmsNorm norm_;
};

}  // namespace kinora::models
