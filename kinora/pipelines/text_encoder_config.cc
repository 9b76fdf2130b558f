#include "kinora/pipelines/text_encoder_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/file.h"

namespace kinora::pipelines {
namespace {

using checkpoint::LateTensors;
using models::Activation;
using models::ClipTextConfig;
using models::T5Config;
using nlohmann::json;

// Far above what is published, so that a damaged file is an error and not a lack of memory.
constexpr int64_t kMostChannels = 1 << 20;
constexpr int64_t kMostWords = 1 << 24;
constexpr int64_t kMostLayers = 1024;
constexpr int kMostLevels = 16;  // of nested JSON

constexpr std::pair<std::string_view, Activation> kActivations[] = {
    {"relu", Activation::kRelu},
    {"gelu", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"quick_gelu", Activation::kQuickGelu},
    {"silu", Activation::kSilu},
};
constexpr std::string_view kGated = "gated-";

/// The values of a config.json; what lies deeper than any config does is left out. Null: no JSON.
json parse_json(const std::string& text) {
  const auto keep = [](int level, json::parse_event_t /*event*/, json& /*value*/) {
    return level <= kMostLevels;
  };
  json values = json::parse(text, keep, /*allow_exceptions=*/false);
  return values.is_discarded() ? json() : values;
}

/// Values of a config.json.
class Reader {
 public:
  Reader(json values, std::string where) : values_(std::move(values)), where_(std::move(where)) {}

  [[nodiscard]] bool has(const char* key) const {
    return values_.contains(key) && !values_[key].is_null();
  }

  template <typename T>
  [[nodiscard]] T get(const char* key, const T& otherwise) const {
    if (!has(key)) {
      return otherwise;
    }
    try {
      return values_[key].get<T>();
    } catch (const json::exception&) {
      throw_error(ErrorKind::kIo, "[text encoder] ", where_, ": ", key,
                  " is of another kind than it must be, got ", values_[key].dump());
    }
  }

  [[nodiscard]] int64_t size(const char* key, int64_t otherwise, int64_t most) const {
    KINORA_CHECK(!has(key) || values_[key].is_number_integer(), kIo, "[text encoder] ", where_,
                 ": ", key, " must be a whole number, got ", values_[key].dump());
    const auto value = get<int64_t>(key, otherwise);
    KINORA_CHECK(value >= 1 && value <= most, kConfig, "[text encoder] ", where_, ": ", key,
                 " must be from 1 to ", most, ", got ", value);
    return value;
  }

  [[nodiscard]] double epsilon(const char* key, double otherwise) const {
    const auto value = get<double>(key, otherwise);
    KINORA_CHECK(value >= 0.0 && value < 1.0, kConfig, "[text encoder] ", where_, ": ", key,
                 " must be from 0 to 1, got ", value);
    return value;
  }

  [[nodiscard]] Activation activation(const char* key, const std::string& name) const {
    for (const auto& [known, value] : kActivations) {
      if (known == name) {
        return value;
      }
    }
    throw_error(ErrorKind::kConfig, "[text encoder] ", where_, ": ", key, " names an activation ",
                io::in_quotes(name),
                " that is not known. Hint: relu, gelu, gelu_new, quick_gelu and silu are");
  }

  /// The object under `key`.
  [[nodiscard]] Reader within(const char* key) const {
    KINORA_CHECK(has(key) && values_[key].is_object(), kIo, "[text encoder] ", where_,
                 " must have an object ", key);
    return {values_[key], where_ + ": " + key};
  }

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  json values_;
  std::string where_;
};

T5Config t5_config(const Reader& reader, const std::string& type) {
  const bool is_gated_by_default = type != "t5";
  const auto proj =
      reader.get<std::string>("feed_forward_proj", is_gated_by_default ? "gated-gelu" : "relu");
  const bool is_gated = proj.starts_with(kGated);
  const std::string activation = proj == "gated-gelu" ? "gelu_new"
                                 : is_gated           ? proj.substr(kGated.size())
                                                      : proj;
  // transformers writes both of these beside feed_forward_proj, from which they follow.
  const auto dense = reader.get<std::string>("dense_act_fn", activation);
  KINORA_CHECK(dense == activation && reader.get<bool>("is_gated_act", is_gated) == is_gated,
               kConfig, "[text encoder] ", reader.where(), ": feed_forward_proj ",
               io::in_quotes(proj), " must go with dense_act_fn ", activation, " and is_gated_act ",
               is_gated ? "true" : "false", ", got ", io::in_quotes(dense), " and ",
               reader.get<bool>("is_gated_act", is_gated) ? "true" : "false");
  T5Config config;
  config.vocab_size = reader.size("vocab_size", type == "t5" ? 32128 : 250112, kMostWords);
  config.d_model = reader.size("d_model", config.d_model, kMostChannels);
  config.d_kv = reader.size("d_kv", config.d_kv, kMostChannels);
  config.d_ff = reader.size("d_ff", type == "t5" ? 2048 : 1024, kMostChannels);
  config.num_layers = reader.size("num_layers", type == "t5" ? 6 : 8, kMostLayers);
  config.num_heads = reader.size("num_heads", type == "t5" ? 8 : 6, kMostChannels);
  config.relative_attention_num_buckets =
      reader.size("relative_attention_num_buckets", 32, kMostChannels);
  config.relative_attention_max_distance =
      reader.size("relative_attention_max_distance", 128, kMostChannels);
  config.layer_norm_epsilon = reader.epsilon("layer_norm_epsilon", 1e-6);
  config.activation = reader.activation("feed_forward_proj", activation);
  config.is_gated = is_gated;
  config.bias_in_every_block = type == "umt5";
  return config;
}

ClipTextConfig clip_config(const Reader& reader) {
  ClipTextConfig config;
  config.vocab_size = reader.size("vocab_size", config.vocab_size, kMostWords);
  config.hidden_size = reader.size("hidden_size", config.hidden_size, kMostChannels);
  config.intermediate_size =
      reader.size("intermediate_size", config.intermediate_size, kMostChannels);
  config.num_hidden_layers =
      reader.size("num_hidden_layers", config.num_hidden_layers, kMostLayers);
  config.num_attention_heads =
      reader.size("num_attention_heads", config.num_attention_heads, kMostChannels);
  config.max_position_embeddings =
      reader.size("max_position_embeddings", config.max_position_embeddings, kMostChannels);
  config.activation =
      reader.activation("hidden_act", reader.get<std::string>("hidden_act", "quick_gelu"));
  config.layer_norm_eps = reader.epsilon("layer_norm_eps", config.layer_norm_eps);
  config.eos_token_id = reader.get<int64_t>("eos_token_id", config.eos_token_id);
  return config;
}

bool has_projection(const Reader& reader) {
  for (const auto& name : reader.get<std::vector<std::string>>("architectures", {})) {
    if (name == "CLIPTextModelWithProjection") {
      return true;
    }
  }
  return false;
}

constexpr int64_t kProjectionDim = 512;

TextEncoderConfig parse(const Reader& reader) {
  const auto type = reader.get<std::string>("model_type", "");
  if (type == "t5" || type == "mt5" || type == "umt5") {
    return t5_config(reader, type);
  }
  if (type == "clip_text_model") {
    ClipTextConfig config = clip_config(reader);
    config.projection_dim =
        has_projection(reader) ? reader.size("projection_dim", kProjectionDim, kMostChannels) : 0;
    return config;
  }
  if (type == "clip") {
    ClipTextConfig config = clip_config(reader.within("text_config"));
    config.projection_dim = reader.size("projection_dim", kProjectionDim, kMostChannels);
    return config;
  }
  throw_error(ErrorKind::kConfig, "[text encoder] ", reader.where(),
              ": model_type must be t5, mt5, umt5, clip_text_model or clip, got ",
              io::in_quotes(type));
}

/// The two sizes of a matrix that must be there.
std::pair<int64_t, int64_t> matrix(const LateTensors& tensors, const std::string& path,
                                   const std::string& where) {
  const auto found = tensors.find(path);
  KINORA_CHECK(found != tensors.end(), kIo, "[text encoder] ", where, " has no ", path);
  const std::vector<int64_t>& shape = found->second.shape;
  KINORA_CHECK(shape.size() == 2 && shape[0] > 0 && shape[1] > 0, kIo, "[text encoder] ", where,
               ": ", path, " must be a matrix, got shape ", at::IntArrayRef(shape));
  return {shape[0], shape[1]};
}

/// How many blocks there are: those with the tensor `prefix` i `suffix`.
int64_t count_blocks(const LateTensors& tensors, const std::string& prefix,
                     const std::string& suffix) {
  int64_t count = 0;
  while (count < kMostLayers && tensors.contains(prefix + std::to_string(count) + suffix)) {
    ++count;
  }
  return count;
}

}  // namespace

TextEncoderConfig parse_text_encoder_config(const std::string& text, const std::string& where) {
  json values = parse_json(text);
  KINORA_CHECK(values.is_object(), kIo, "[text encoder] ", where, " is not a JSON object");
  return parse(Reader(std::move(values), where));
}

bool is_text_encoder_config(const std::string& text) {
  const json values = parse_json(text);
  if (!values.is_object() || !values.contains("model_type")) {
    return false;
  }
  for (const char* type : {"t5", "mt5", "umt5", "clip_text_model", "clip"}) {
    if (values["model_type"] == type) {
      return true;
    }
  }
  return false;
}

T5Config t5_config_of(const LateTensors& tensors, const std::string& where) {
  const std::string first = "encoder.block.0.layer.0.SelfAttention.";
  const std::string bias = ".layer.0.SelfAttention.relative_attention_bias.weight";
  T5Config config;
  std::tie(config.vocab_size, config.d_model) = matrix(tensors, "shared.weight", where);
  std::tie(config.relative_attention_num_buckets, config.num_heads) =
      matrix(tensors, "encoder.block.0" + bias, where);
  const int64_t inner = matrix(tensors, first + "q.weight", where).first;
  KINORA_CHECK(inner % config.num_heads == 0, kIo, "[text encoder] ", where, ": ", first,
               "q.weight must have a multiple of the ", config.num_heads, " heads as rows, got ",
               inner);
  config.d_kv = inner / config.num_heads;
  config.d_ff = matrix(tensors, "encoder.block.0.layer.1.DenseReluDense.wo.weight", where).second;
  config.num_layers = count_blocks(tensors, "encoder.block.", ".layer.0.SelfAttention.q.weight");
  config.is_gated = tensors.contains("encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
  config.activation = config.is_gated ? Activation::kGeluTanh : Activation::kRelu;
  config.bias_in_every_block = tensors.contains("encoder.block.1" + bias);
  return config;
}

ClipTextConfig clip_config_of(const LateTensors& tensors, const std::string& where) {
  constexpr int64_t kHeadChannels = 64;
  constexpr int64_t kLargestOfOpenAi = 768;
  constexpr int64_t kOldEnd = 2;
  ClipTextConfig config;
  std::tie(config.vocab_size, config.hidden_size) =
      matrix(tensors, "text_model.embeddings.token_embedding.weight", where);
  config.max_position_embeddings =
      matrix(tensors, "text_model.embeddings.position_embedding.weight", where).first;
  config.intermediate_size =
      matrix(tensors, "text_model.encoder.layers.0.mlp.fc1.weight", where).first;
  config.num_hidden_layers =
      count_blocks(tensors, "text_model.encoder.layers.", ".self_attn.q_proj.weight");
  KINORA_CHECK(config.hidden_size % kHeadChannels == 0, kIo, "[text encoder] ", where, " has ",
               config.hidden_size, " channels, which are no heads of ", kHeadChannels,
               ". Hint: a config.json beside it says how many heads there are");
  config.num_attention_heads = config.hidden_size / kHeadChannels;
  config.activation =
      config.hidden_size <= kLargestOfOpenAi ? Activation::kQuickGelu : Activation::kGelu;
  config.eos_token_id = kOldEnd;
  if (tensors.contains("text_projection.weight")) {
    config.projection_dim = matrix(tensors, "text_projection.weight", where).first;
  }
  return config;
}

std::unique_ptr<models::TextEncoder> make_text_encoder(const TextEncoderConfig& config) {
  if (const auto* t5 = std::get_if<T5Config>(&config)) {
    return std::make_unique<models::T5Encoder>(*t5);
  }
  return std::make_unique<models::ClipTextEncoder>(std::get<ClipTextConfig>(config));
}

}  // namespace kinora::pipelines
