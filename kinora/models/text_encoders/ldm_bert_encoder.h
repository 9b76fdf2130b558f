#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/activation.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/naming.h"

namespace kinora::models {

/// As diffusers' LDMBertConfig names and starts it: that of text2img-large.
struct LdmBertConfig {
  int64_t vocab_size = 30522;
  int64_t d_model = 1280;
  int64_t encoder_ffn_dim = 5120;
  int64_t encoder_layers = 32;
  int64_t encoder_attention_heads = 8;
  int64_t head_dim = 64;
  int64_t max_position_embeddings = 77;
  Activation activation = Activation::kGelu;
};

/// x + out_proj(attention(norm(x))), then x + fc2(activation(fc1(norm(x)))). A token sees all of
/// its text.
class LdmBertBlock : public nn::Module {
 public:
  explicit LdmBertBlock(const LdmBertConfig& config);
  /// x: fp32 [rows, C]; returns the same.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const RaggedRows& rows) const;
  [[nodiscard]] std::vector<TextLinear*> linears();

 private:
  // NOLINTBEGIN(readability-identifier-naming): named as diffusers' keys
  TextLinear k_proj;
  TextLinear v_proj;
  TextLinear q_proj;
  TextLinear out_proj;
  nn::LayerNorm self_attn_layer_norm;
  TextLinear fc1;
  TextLinear fc2;
  nn::LayerNorm final_layer_norm;
  // NOLINTEND(readability-identifier-naming)
  int64_t num_heads_;
  int64_t head_dim_;
  Activation activation_;
};

/// The text encoder of latent diffusion (Rombach et al. 2022, appendix; BERTEmbedder there,
/// diffusers' LDMBertModel): BERT's vocabulary, a transformer that was trained with the U-Net.
/// Published models read texts that are padded to all positions.
class LdmBertEncoder : public TextEncoder {
 public:
  explicit LdmBertEncoder(const LdmBertConfig& config);

  /// kShape also for a text beyond the positions.
  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;

  [[nodiscard]] const LdmBertConfig& config() const { return config_; }
  [[nodiscard]] std::string kind() const override { return "BERT"; }
  [[nodiscard]] int64_t num_blocks() const override { return config_.encoder_layers; }
  [[nodiscard]] int64_t width() const override { return config_.d_model; }
  [[nodiscard]] int64_t pooled_width() const override { return 0; }
  [[nodiscard]] int64_t vocab_size() const override { return config_.vocab_size; }
  [[nodiscard]] std::optional<int64_t> piece() const override {
    return config_.max_position_embeddings;
  }
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override {
    return {{"model.embed_tokens.weight", &embed_tokens_}};
  }
  [[nodiscard]] std::vector<TextLinear*> linears() override;

 private:
  LdmBertConfig config_;
  nn::Parameter embed_tokens_;     // [vocab_size, C]
  nn::Parameter embed_positions_;  // [max_position_embeddings, C]
  std::vector<std::unique_ptr<LdmBertBlock>> blocks_;
  nn::LayerNorm layer_norm_;
};

/// CompVis' keys below cond_stage_model.transformer. (x_transformer.py) of so many blocks: paths
/// are theirs, keys ours.
[[nodiscard]] nn::Naming from_x_transformer(int64_t blocks);

}  // namespace kinora::models
