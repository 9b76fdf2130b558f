#pragma once

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/ldm_bert_encoder.h"
#include "kinora/models/text_encoders/llama_encoder.h"
#include "kinora/models/text_encoders/t5_encoder.h"
#include "tests/models/formula_values.h"
#include "tests/places.h"

namespace kinora::models {

/// A file of tools/reference/make_text_encoder_fixtures.py, whose top lists the tensors.
class TextFixture {
 public:
  explicit TextFixture(const std::string& name)
      : file_(io::SafetensorsFile::open(source_path("tests/models/data/").string() + name +
                                        ".safetensors")) {}

  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? at::Tensor()
                            : device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  /// The texts, ragged.
  [[nodiscard]] TextTokens tokens() const {
    return {.ids = numbers("ids"), .lengths = numbers("lengths")};
  }
  /// The same, padded to one length: all of it is to be computed.
  [[nodiscard]] TextTokens padded_tokens() const {
    const at::Tensor ids = tensor("padded.ids");
    return {.ids = numbers("padded.ids"),
            .lengths = std::vector<int64_t>(static_cast<size_t>(ids.size(0)), ids.size(1))};
  }

  /// config.json's text.
  [[nodiscard]] const std::string& config_text() const { return file_.metadata().at("config"); }

  [[nodiscard]] T5Config t5() const {
    const auto json = nlohmann::json::parse(config_text());
    return {.vocab_size = json["vocab_size"],
            .d_model = json["d_model"],
            .d_kv = json["d_kv"],
            .d_ff = json["d_ff"],
            .num_layers = json["num_layers"],
            .num_heads = json["num_heads"],
            .relative_attention_num_buckets = json["relative_attention_num_buckets"],
            .relative_attention_max_distance = json["relative_attention_max_distance"],
            .layer_norm_epsilon = json["layer_norm_epsilon"],
            .activation =
                json["feed_forward_proj"] == "relu" ? Activation::kRelu : Activation::kGeluTanh,
            .is_gated = json["feed_forward_proj"] != "relu",
            .bias_in_every_block = json["model_type"] == "umt5"};
  }

  [[nodiscard]] ClipTextConfig clip() const {
    const auto json = nlohmann::json::parse(config_text());
    const bool is_quick = json["hidden_act"] == "quick_gelu";
    return {.vocab_size = json["vocab_size"],
            .hidden_size = json["hidden_size"],
            .intermediate_size = json["intermediate_size"],
            .num_hidden_layers = json["num_hidden_layers"],
            .num_attention_heads = json["num_attention_heads"],
            .max_position_embeddings = json["max_position_embeddings"],
            .activation = is_quick ? Activation::kQuickGelu : Activation::kGelu,
            .layer_norm_eps = json["layer_norm_eps"],
            .projection_dim = is_quick ? 0 : json["projection_dim"].get<int64_t>(),
            .eos_token_id = json["eos_token_id"]};
  }

  [[nodiscard]] LlamaConfig llama() const {
    const auto json = nlohmann::json::parse(config_text());
    return {.vocab_size = json["vocab_size"],
            .hidden_size = json["hidden_size"],
            .intermediate_size = json["intermediate_size"],
            .num_hidden_layers = json["num_hidden_layers"],
            .num_attention_heads = json["num_attention_heads"],
            .num_key_value_heads = json["num_key_value_heads"],
            .head_dim = json["head_dim"],
            .rms_norm_eps = json["rms_norm_eps"],
            .rope_theta = json["rope_parameters"]["rope_theta"]};
  }

  [[nodiscard]] LdmBertConfig bert() const {
    const auto json = nlohmann::json::parse(config_text());
    return {.vocab_size = json["vocab_size"],
            .d_model = json["d_model"],
            .encoder_ffn_dim = json["encoder_ffn_dim"],
            .encoder_layers = json["encoder_layers"],
            .encoder_attention_heads = json["encoder_attention_heads"],
            .head_dim = json["head_dim"],
            .max_position_embeddings = json["max_position_embeddings"]};
  }

  /// Without weights.
  [[nodiscard]] std::unique_ptr<TextEncoder> encoder() const {
    const auto type = nlohmann::json::parse(config_text())["model_type"];
    if (type == "clip_text_model") {
      return std::make_unique<ClipTextEncoder>(clip());
    }
    if (type == "llama") {
      return std::make_unique<LlamaEncoder>(llama());
    }
    if (type == "ldmbert") {
      return std::make_unique<LdmBertEncoder>(bert());
    }
    return std::make_unique<T5Encoder>(t5());
  }

  /// The value of a parameter, fp32.
  [[nodiscard]] at::Tensor weight(const std::string& path, at::IntArrayRef shape) const {
    at::Tensor value = formula_weight(path, shape);
    return path.ends_with(".q.weight") ? value.mul_(std::stod(file_.metadata().at("q_scale")))
                                       : value;
  }
  /// Frozen weights.
  void set_weights(TextEncoder& encoder, at::ScalarType type = at::kFloat,
                   at::Device device = at::kCPU) const {
    for (const auto& [path, parameter] : encoder.named_parameters()) {
      parameter->value = weight(path, parameter->shape).to(device, type);
    }
  }

 private:
  [[nodiscard]] std::vector<int64_t> numbers(const std::string& name) const {
    const at::Tensor values = tensor(name);
    return {values.const_data_ptr<int64_t>(), values.const_data_ptr<int64_t>() + values.numel()};
  }

  io::SafetensorsFile file_;
};

/// The norm of the difference over that of `b`.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  const at::Tensor exact = b.to(at::kDouble);
  return ((a.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

}  // namespace kinora::models
