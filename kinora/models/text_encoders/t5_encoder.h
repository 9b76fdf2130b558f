#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/text_encoders/activation.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/nn/rms_norm.h"
#include "kinora/ops/text_kernels.h"

namespace kinora::models {

/// As transformers' T5Config names and starts it.
struct T5Config {
  int64_t vocab_size = 32128;
  int64_t d_model = 512;
  int64_t d_kv = 64;  ///< channels of a head
  int64_t d_ff = 2048;
  int64_t num_layers = 6;
  int64_t num_heads = 8;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  Activation activation = Activation::kRelu;
  bool is_gated = false;             ///< T5 1.1: activation(wi_0 x) * wi_1 x
  bool bias_in_every_block = false;  ///< UMT5; else all blocks use the first one's
};

/// The buckets that distances key - query of 1 - length to length - 1 fall in, int64 on the CPU:
/// half of them for keys behind the query; short distances have one each, longer ones share them
/// on a logarithmic scale up to max_distance (Raffel et al. 2020, section 2.1).
[[nodiscard]] at::Tensor t5_distance_buckets(const T5Config& config, int64_t length);

/// x + o(attention(norm(x))), then x + wo(activation(wi(norm(x)))).
class T5Block : public nn::Module {
 public:
  T5Block(const T5Config& config, bool has_bias);

  /// x: fp32 [rows, C]; distance_bias: see RaggedAttentionOptions. Returns the same as x.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const RaggedRows& rows,
                                   const at::Tensor& distance_bias) const;

  [[nodiscard]] bool has_bias() const { return relative_attention_bias.has_value(); }
  /// Its table's rows at `buckets` [N]: [H, N].
  [[nodiscard]] at::Tensor distance_bias(const at::Tensor& buckets) const;

  nn::RmsNorm attention_norm;
  TextLinear q;
  TextLinear k;
  TextLinear v;
  TextLinear o;
  std::optional<nn::Parameter> relative_attention_bias;  ///< [buckets, H]
  nn::RmsNorm mlp_norm;
  TextLinear wi;                   ///< wi_0 where it is gated
  std::optional<TextLinear> wi_1;  ///< where it is gated
  TextLinear wo;

 private:
  [[nodiscard]] at::Tensor mlp(const at::Tensor& x) const;

  int64_t num_heads_;
  Activation activation_;
};

/// The encoder of T5, T5 1.1, mT5 and UMT5 (transformers' T5EncoderModel and UMT5EncoderModel),
/// without dropout. Scores are not divided by sqrt(d_kv).
///
/// In fp16 nothing overflows: the residual stream is fp32, and what wo reads, whose product leaves
/// fp16's range in the larger models, is divided by a power of two a row before it.
///
/// In bf16 on a GPU, and where no gradients are wanted, blocks run by our own kernels
/// (t5_inference.h).
class T5Encoder : public TextEncoder {
 public:
  explicit T5Encoder(const T5Config& config);

  [[nodiscard]] TextStates encode(const TextTokens& tokens, const TextLayer& layer) override;
  using TextEncoder::encode;
  /// The normed states of texts of one padded length, for training and for CUDA graphs: nothing is
  /// read on the host, and ids are not checked. ids: int64 [B, L]; valid: bool [B, L], one or more
  /// of each text; buckets: t5_distance_buckets of L, on their device. Returns fp32 [B, L, width].
  [[nodiscard]] at::Tensor encode_padded(const at::Tensor& ids, const at::Tensor& valid,
                                         const at::Tensor& buckets) const;

  [[nodiscard]] const T5Config& config() const { return config_; }
  [[nodiscard]] std::string kind() const override { return "T5"; }
  [[nodiscard]] int64_t num_blocks() const override { return config_.num_layers; }
  [[nodiscard]] int64_t width() const override { return config_.d_model; }
  [[nodiscard]] int64_t pooled_width() const override { return 0; }
  [[nodiscard]] int64_t vocab_size() const override { return config_.vocab_size; }
  [[nodiscard]] std::string block_path(int64_t block) const override;
  [[nodiscard]] std::vector<nn::NamedParameter> vocabularies() override {
    return {{"shared.weight", &shared}};
  }
  [[nodiscard]] std::vector<TextLinear*> linears() override;

  nn::Parameter shared;  ///< [vocab_size, d_model]
  std::vector<std::unique_ptr<T5Block>> blocks;
  nn::RmsNorm final_layer_norm;

 private:
  /// The states of x, the embedded tokens: fp32 [rows, C], which may be overwritten.
  [[nodiscard]] at::Tensor states_of(const at::Tensor& x, const TextTokens& tokens,
                                     const TextLayer& layer);

  T5Config config_;
  std::unique_ptr<ops::TextKernels> kernels_;  // made when first needed
};

}  // namespace kinora::models
