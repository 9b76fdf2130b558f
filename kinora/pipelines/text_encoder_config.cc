#include "kinora/pipelines/text_encoder_config.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

using checkpoint::LateTensors;
using models::Activation;
using models::ClipTextConfig;
using models::LdmBertConfig;
using models::LlamaConfig;
using models::T5Config;

constexpr const char* kRoom = "text encoder";  // in errors
// Far above what is published, so that a damaged file is an error and not a lack of memory.
constexpr int64_t kMostChannels = 1 << 20;
constexpr int64_t kMostWords = 1 << 24;
constexpr int64_t kMostLayers = 1024;
constexpr int64_t kMostPixels = 4096;  // a side of what an image tower takes

constexpr std::pair<std::string_view, Activation> kActivations[] = {
    {"relu", Activation::kRelu},
    {"gelu", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"quick_gelu", Activation::kQuickGelu},
    {"silu", Activation::kSilu},
};
constexpr const char* kModelTypes[] = {
    "t5", "mt5", "umt5", "llama", "llava", "ldmbert", "clip_text_model", "clip"};
constexpr std::string_view kGated = "gated-";

double epsilon(const DiffusersConfig& config, const char* key, double otherwise) {
  const auto value = config.get<double>(key, otherwise);
  KINORA_CHECK(value >= 0.0 && value < 1.0, kConfig, config.message(), key,
               " must be from 0 to 1, got ", value);
  return value;
}

/// The one of that name, which the config has under `key`.
Activation activation_named(const DiffusersConfig& config, const char* key,
                            const std::string& name) {
  for (const auto& [known, value] : kActivations) {
    if (known == name) {
      return value;
    }
  }
  throw_error(ErrorKind::kConfig, config.message(), key, " names an activation ",
              io::in_quotes(name),
              " that is not known. Hint: relu, gelu, gelu_new, quick_gelu and silu are");
}

T5Config t5_config(const DiffusersConfig& values, const std::string& type) {
  const bool is_gated_by_default = type != "t5";
  const auto proj =
      values.get<std::string>("feed_forward_proj", is_gated_by_default ? "gated-gelu" : "relu");
  const bool is_gated = proj.starts_with(kGated);
  const std::string activation = proj == "gated-gelu" ? "gelu_new"
                                 : is_gated           ? proj.substr(kGated.size())
                                                      : proj;
  // transformers writes both of these beside feed_forward_proj, from which they follow.
  const auto dense = values.get<std::string>("dense_act_fn", activation);
  KINORA_CHECK(dense == activation && values.get<bool>("is_gated_act", is_gated) == is_gated,
               kConfig, values.message(), "feed_forward_proj ", io::in_quotes(proj),
               " must go with dense_act_fn ", activation, " and is_gated_act ",
               is_gated ? "true" : "false", ", got ", io::in_quotes(dense), " and ",
               values.get<bool>("is_gated_act", is_gated) ? "true" : "false");
  T5Config config;
  config.vocab_size = values.size("vocab_size", type == "t5" ? 32128 : 250112, kMostWords);
  config.d_model = values.size("d_model", config.d_model, kMostChannels);
  config.d_kv = values.size("d_kv", config.d_kv, kMostChannels);
  config.d_ff = values.size("d_ff", type == "t5" ? 2048 : 1024, kMostChannels);
  config.num_layers = values.size("num_layers", type == "t5" ? 6 : 8, kMostLayers);
  config.num_heads = values.size("num_heads", type == "t5" ? 8 : 6, kMostChannels);
  config.relative_attention_num_buckets =
      values.size("relative_attention_num_buckets", 32, kMostChannels);
  config.relative_attention_max_distance =
      values.size("relative_attention_max_distance", 128, kMostChannels);
  config.layer_norm_epsilon = epsilon(values, "layer_norm_epsilon", 1e-6);
  config.activation = activation_named(values, "feed_forward_proj", activation);
  config.is_gated = is_gated;
  config.bias_in_every_block = type == "umt5";
  return config;
}

/// What CLIP's towers and Llama name alike.
template <typename Config>
void read_sizes(const DiffusersConfig& values, Config& config) {
  config.hidden_size = values.size("hidden_size", config.hidden_size, kMostChannels);
  config.intermediate_size =
      values.size("intermediate_size", config.intermediate_size, kMostChannels);
  config.num_hidden_layers =
      values.size("num_hidden_layers", config.num_hidden_layers, kMostLayers);
  config.num_attention_heads =
      values.size("num_attention_heads", config.num_attention_heads, kMostChannels);
}

/// What the text and the image tower of a CLIP both have.
template <typename Tower>
Tower clip_tower(const DiffusersConfig& values) {
  Tower config;
  read_sizes(values, config);
  config.activation =
      activation_named(values, "hidden_act", values.get<std::string>("hidden_act", "quick_gelu"));
  config.layer_norm_eps = epsilon(values, "layer_norm_eps", config.layer_norm_eps);
  return config;
}

ClipTextConfig clip_config(const DiffusersConfig& values) {
  auto config = clip_tower<ClipTextConfig>(values);
  config.vocab_size = values.size("vocab_size", config.vocab_size, kMostWords);
  config.max_position_embeddings =
      values.size("max_position_embeddings", config.max_position_embeddings, kMostChannels);
  config.eos_token_id = values.get<int64_t>("eos_token_id", config.eos_token_id);
  return config;
}

LlamaConfig llama_config(const DiffusersConfig& values) {
  LlamaConfig config;
  config.vocab_size = values.size("vocab_size", config.vocab_size, kMostWords);
  read_sizes(values, config);
  config.num_key_value_heads =
      values.size("num_key_value_heads", config.num_attention_heads, kMostChannels);
  config.head_dim =
      values.size("head_dim", std::max<int64_t>(config.hidden_size / config.num_attention_heads, 1),
                  kMostChannels);
  config.activation =
      activation_named(values, "hidden_act", values.get<std::string>("hidden_act", "silu"));
  config.rms_norm_eps = epsilon(values, "rms_norm_eps", config.rms_norm_eps);
  values.require<bool>("attention_bias", false, false);
  values.require<bool>("mlp_bias", false, false);
  // transformers 5 writes rope_parameters, older ones rope_theta and, of Llama 3.1, rope_scaling.
  const bool is_new = values.is_object("rope_parameters");
  const DiffusersConfig rope = is_new ? values.within("rope_parameters") : values;
  config.rope_theta = rope.get<double>("rope_theta", config.rope_theta);
  KINORA_CHECK(config.rope_theta > 0.0, kConfig, values.message(),
               "rope_theta must be positive, got ", config.rope_theta);
  if (is_new) {
    rope.require<std::string>("rope_type", "default", "default");
  } else {
    KINORA_CHECK(!values.has("rope_scaling"), kConfig, values.message(),
                 "rope_scaling must be null, got ", values.written("rope_scaling"),
                 ". Hint: LLaMA 3 has none, 3.1 and later have");
  }
  return config;
}

/// Of CLIP's image tower, but for its projection.
models::ClipImageConfig image_config(const DiffusersConfig& values) {
  values.require<int64_t>("num_channels", 3, 3);
  auto config = clip_tower<models::ClipImageConfig>(values);
  config.image_size = values.size("image_size", config.image_size, kMostPixels);
  config.patch_size = values.size("patch_size", config.patch_size, kMostPixels);
  return config;
}

models::LlavaConfig llava_config(const DiffusersConfig& values) {
  const DiffusersConfig text = values.within("text_config");
  const DiffusersConfig image = values.within("vision_config");
  text.require<std::string>("model_type", "llama", "llama");
  image.require<std::string>("model_type", "clip_vision_model", "clip_vision_model");
  values.require<int64_t>("vision_feature_layer", -2, -2);
  values.require<std::string>("vision_feature_select_strategy", "default", "default");
  models::LlavaConfig config{.text = llama_config(text), .image = image_config(image)};
  config.image.projection_dim = 0;
  // transformers 5 may write the newer name.
  const char* const id = values.has("image_token_id") ? "image_token_id" : "image_token_index";
  config.image_token_id = values.get<int64_t>(id, config.image_token_id);
  config.projector_activation = activation_named(
      values, "projector_hidden_act", values.get<std::string>("projector_hidden_act", "gelu"));
  config.projector_bias = values.get<bool>("multimodal_projector_bias", true);
  return config;
}

LdmBertConfig bert_config(const DiffusersConfig& values) {
  LdmBertConfig config;
  const auto read = [&values](const char* key, int64_t& size, int64_t most) {
    size = values.size(key, size, most);
  };
  read("vocab_size", config.vocab_size, kMostWords);
  read("d_model", config.d_model, kMostChannels);
  read("encoder_ffn_dim", config.encoder_ffn_dim, kMostChannels);
  read("encoder_layers", config.encoder_layers, kMostLayers);
  read("encoder_attention_heads", config.encoder_attention_heads, kMostChannels);
  read("head_dim", config.head_dim, kMostChannels);
  read("max_position_embeddings", config.max_position_embeddings, kMostChannels);
  config.activation = activation_named(values, "activation_function",
                                       values.get<std::string>("activation_function", "gelu"));
  return config;
}

bool has_projection(const DiffusersConfig& values) {
  for (const auto& name : values.get<std::vector<std::string>>("architectures", {})) {
    if (name == "CLIPTextModelWithProjection") {
      return true;
    }
  }
  return false;
}

constexpr int64_t kProjectionDim = 512;

TextEncoderConfig parse(const DiffusersConfig& values) {
  const auto type = values.get<std::string>("model_type", "");
  if (type == "t5" || type == "mt5" || type == "umt5") {
    return t5_config(values, type);
  }
  if (type == "llama") {
    return llama_config(values);
  }
  if (type == "llava") {
    return llava_config(values);
  }
  if (type == "ldmbert") {
    return bert_config(values);
  }
  if (type == "clip_text_model") {
    ClipTextConfig config = clip_config(values);
    config.projection_dim =
        has_projection(values) ? values.size("projection_dim", kProjectionDim, kMostChannels) : 0;
    return config;
  }
  if (type == "clip") {
    ClipTextConfig config = clip_config(values.within("text_config"));
    config.projection_dim = values.size("projection_dim", kProjectionDim, kMostChannels);
    return config;
  }
  throw_error(ErrorKind::kConfig, values.message(),
              "model_type must be t5, mt5, umt5, llama, llava, ldmbert, clip_text_model or clip, "
              "got ",
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
  return parse(DiffusersConfig(text, kRoom, where));
}

models::ClipImageConfig parse_image_encoder_config(const std::string& text,
                                                   const std::string& where) {
  const DiffusersConfig outer(text, "clip", where);
  const auto type = outer.get<std::string>("model_type", "");
  const bool is_alone = type == "clip_vision_model";
  KINORA_CHECK(is_alone || type == "clip", kConfig, outer.message(),
               "model_type must be clip, which has a text and an image tower, or "
               "clip_vision_model, which is the latter, got ",
               io::in_quotes(type));
  models::ClipImageConfig config = image_config(is_alone ? outer : outer.within("vision_config"));
  config.projection_dim = outer.size("projection_dim", kProjectionDim, kMostChannels);
  return config;
}

bool is_text_encoder_config(const std::string& text) {
  const auto config = DiffusersConfig::find(text, kRoom, "config.json");
  return config && std::ranges::any_of(kModelTypes, [&config](const char* type) {
           return config->is("model_type", type);
         });
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

LlamaConfig llama_config_of(const LateTensors& tensors, const std::string& where) {
  constexpr double kTheta = 5e5;
  constexpr double kEpsilon = 1e-5;
  const std::string first = "layers.0.self_attn.";
  LlamaConfig config;
  std::tie(config.vocab_size, config.hidden_size) = matrix(tensors, "embed_tokens.weight", where);
  config.intermediate_size = matrix(tensors, "layers.0.mlp.gate_proj.weight", where).first;
  config.num_hidden_layers = count_blocks(tensors, "layers.", ".mlp.gate_proj.weight");
  const int64_t queries = matrix(tensors, first + "q_proj.weight", where).first;
  const int64_t keys = matrix(tensors, first + "k_proj.weight", where).first;
  KINORA_CHECK(queries % config.head_dim == 0 && keys % config.head_dim == 0, kIo,
               "[text encoder] ", where, ": ", first, "q_proj and k_proj must be heads of ",
               config.head_dim, " channels, got ", queries, " and ", keys,
               ". Hint: a config.json beside it says how many heads there are");
  config.num_attention_heads = queries / config.head_dim;
  config.num_key_value_heads = keys / config.head_dim;
  config.rms_norm_eps = kEpsilon;
  config.rope_theta = kTheta;
  return config;
}

LdmBertConfig bert_config_of(const LateTensors& tensors, const std::string& where) {
  const std::string first = "model.layers.0.";
  LdmBertConfig config;
  std::tie(config.vocab_size, config.d_model) = matrix(tensors, "model.embed_tokens.weight", where);
  config.max_position_embeddings = matrix(tensors, "model.embed_positions.weight", where).first;
  config.encoder_ffn_dim = matrix(tensors, first + "fc1.weight", where).first;
  config.encoder_layers = count_blocks(tensors, "model.layers.", ".fc1.weight");
  const int64_t inner = matrix(tensors, first + "self_attn.q_proj.weight", where).first;
  KINORA_CHECK(inner % config.head_dim == 0, kIo, "[text encoder] ", where, ": ", first,
               "self_attn.q_proj must be heads of ", config.head_dim, " channels, got ", inner,
               ". Hint: a config.json beside it says how many heads there are");
  config.encoder_attention_heads = inner / config.head_dim;
  return config;
}

std::unique_ptr<models::TextEncoder> make_text_encoder(const TextEncoderConfig& config) {
  if (const auto* t5 = std::get_if<T5Config>(&config)) {
    return std::make_unique<models::T5Encoder>(*t5);
  }
  if (const auto* llama = std::get_if<LlamaConfig>(&config)) {
    return std::make_unique<models::LlamaEncoder>(*llama);
  }
  if (const auto* llava = std::get_if<models::LlavaConfig>(&config)) {
    return std::make_unique<models::LlavaEncoder>(*llava);
  }
  if (const auto* bert = std::get_if<LdmBertConfig>(&config)) {
    return std::make_unique<models::LdmBertEncoder>(*bert);
  }
  return std::make_unique<models::ClipTextEncoder>(std::get<ClipTextConfig>(config));
}

}  // namespace kinora::pipelines
