#include "kinora/models/text_encoders/clip_text_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

// Shapes: T rows of all texts, B texts, C width, H heads, D channels of a head.

namespace kinora::models {
namespace {

constexpr int64_t kOldEnd = 2;  // ClipTextConfig::eos_token_id
constexpr double kEmbeddingStd = 0.02;

/// As CLIP starts: normals around 1 / sqrt(width), smaller in front of the residual stream.
double std_of(int64_t width) {
  return 1.0 / std::sqrt(static_cast<double>(width));
}
nn::Init inner_init(const ClipTextConfig& config) {
  return nn::Init::normal(std_of(config.hidden_size) * std_of(2 * config.num_hidden_layers));
}

}  // namespace

ClipTextBlock::ClipTextBlock(const ClipTextConfig& config)
    : k_proj(config.hidden_size, config.hidden_size, inner_init(config), true),
      v_proj(config.hidden_size, config.hidden_size, inner_init(config), true),
      q_proj(config.hidden_size, config.hidden_size, inner_init(config), true),
      out_proj(config.hidden_size, config.hidden_size, nn::Init::normal(std_of(config.hidden_size)),
               true),
      layer_norm1(config.hidden_size, config.layer_norm_eps),
      fc1(config.hidden_size, config.intermediate_size,
          nn::Init::normal(std_of(2 * config.hidden_size)), true),
      fc2(config.intermediate_size, config.hidden_size, inner_init(config), true),
      layer_norm2(config.hidden_size, config.layer_norm_eps),
      num_heads_(config.num_attention_heads),
      activation_(config.activation) {
  add_child("self_attn.k_proj", k_proj);
  add_child("self_attn.v_proj", v_proj);
  add_child("self_attn.q_proj", q_proj);
  add_child("self_attn.out_proj", out_proj);
  add_child("layer_norm1", layer_norm1);
  add_child("mlp.fc1", fc1);
  add_child("mlp.fc2", fc2);
  add_child("layer_norm2", layer_norm2);
}

at::Tensor ClipTextBlock::forward(const at::Tensor& x, const RaggedRows& rows) const {
  const at::Tensor normed = layer_norm1.forward(x).to(q_proj.type());
  const auto heads = [&](const TextLinear& linear) {
    return linear.forward(normed).unflatten(1, {num_heads_, -1});  // [T, H, D]
  };
  const at::Tensor q = heads(q_proj);
  const at::Tensor attended = ragged_attention(
      q, heads(k_proj), heads(v_proj), rows,
      {.scale = 1.0 / std::sqrt(static_cast<double>(q.size(2))), .causal = true});  // [T, C]
  const at::Tensor middle = x + out_proj.forward(attended);
  const at::Tensor hidden = activate(activation_, fc1.forward(layer_norm2.forward(middle)));
  return tapped(middle + fc2.forward(hidden));
}

ClipTextEncoder::ClipTextEncoder(const ClipTextConfig& config)
    : token_embedding{.shape = {config.vocab_size, config.hidden_size},
                      .init = nn::Init::normal(kEmbeddingStd),
                      .value = {},
                      .grad = {}},
      position_embedding{.shape = {config.max_position_embeddings, config.hidden_size},
                         .init = nn::Init::normal(kEmbeddingStd),
                         .value = {},
                         .grad = {}},
      final_layer_norm(config.hidden_size, config.layer_norm_eps),
      config_(config) {
  KINORA_CHECK(config.hidden_size % config.num_attention_heads == 0, kConfig,
               "[clip] num_attention_heads must divide hidden_size ", config.hidden_size, ", got ",
               config.num_attention_heads);
  add_parameter("text_model.embeddings.token_embedding.weight", token_embedding);
  add_parameter("text_model.embeddings.position_embedding.weight", position_embedding);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks.push_back(std::make_unique<ClipTextBlock>(config));
    blocks.back()->set_layer(i + 1);
    add_child("text_model.encoder.layers." + std::to_string(i), *blocks.back());
  }
  final_layer_norm.set_layer(config.num_hidden_layers + 1);
  add_child("text_model.final_layer_norm", final_layer_norm);
  if (config.projection_dim > 0) {
    text_projection.emplace(config.hidden_size, config.projection_dim,
                            nn::Init::normal(std_of(config.hidden_size)), false);
    text_projection->set_layer(config.num_hidden_layers + 1);
    add_child("text_projection", *text_projection);
  }
}

int64_t ClipTextEncoder::pooled_width() const {
  return text_projection ? config_.projection_dim : config_.hidden_size;
}

std::string ClipTextEncoder::block_path(int64_t block) const {
  return "text_model.encoder.layers." + std::to_string(block) + ".";
}

std::vector<TextLinear*> ClipTextEncoder::linears() {
  std::vector<TextLinear*> linears;
  for (const std::unique_ptr<ClipTextBlock>& block : blocks) {
    for (TextLinear* linear : {&block->q_proj, &block->k_proj, &block->v_proj, &block->out_proj,
                               &block->fc1, &block->fc2}) {
      linears.push_back(linear);
    }
  }
  return linears;
}

at::Tensor ClipTextEncoder::end_rows(const TextTokens& tokens) const {
  std::vector<int64_t> rows;
  auto begin = tokens.ids.begin();
  for (size_t text = 0; text < tokens.lengths.size(); ++text) {
    const auto end = begin + tokens.lengths[text];
    const auto found = config_.eos_token_id == kOldEnd
                           ? std::max_element(begin, end)
                           : std::find(begin, end, config_.eos_token_id);
    KINORA_CHECK(found != end, kShape, "[clip] text ", text, " must have the end token ",
                 config_.eos_token_id, ", and has not. Hint: a tokenizer adds it");
    rows.push_back(found - tokens.ids.begin());
    begin = end;
  }
  return at::tensor(rows, at::kLong);
}

TextStates ClipTextEncoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  check(tokens, layer);
  KINORA_CHECK(tokens.attended.empty(), kShape, "[clip] all of a text's tokens are attended to");
  std::vector<int64_t> positions;
  for (size_t text = 0; text < tokens.lengths.size(); ++text) {
    const int64_t length = tokens.lengths[text];
    KINORA_CHECK(length <= config_.max_position_embeddings, kShape, "[clip] text ", text,
                 " must have at most ", config_.max_position_embeddings, " tokens, got ", length,
                 ". Hint: truncate it, or encode it in pieces");
    const size_t first = positions.size();
    positions.resize(first + static_cast<size_t>(length));
    std::iota(positions.begin() + static_cast<std::ptrdiff_t>(first), positions.end(), 0);
  }
  const at::Tensor ends = end_rows(tokens);
  const at::Device device = position_embedding.value.device();
  const RaggedRows rows(tokens.lengths, device, RaggedRows::unit_for(device));
  at::Tensor x =
      embed(tokens, device) +
      at::embedding(ops::with_gradient(position_embedding.value, position_embedding.grad),
                    at::tensor(positions, at::kLong).to(device));  // fp32 [T, C]
  at::Tensor wanted;
  for (int64_t i = 0; i < num_blocks(); ++i) {
    x = with_block(i, [&] { return blocks[static_cast<size_t>(i)]->forward(x, rows); });
    if (i + 1 == num_blocks() - layer.before_last) {
      wanted = x;
    }
  }
  const at::Tensor at_ends =
      final_layer_norm.forward(x.index_select(0, ends.to(device)));  // [B, C]
  return {.states = layer.normed ? final_layer_norm.forward(wanted) : wanted,
          .lengths = tokens.lengths,
          .pooled = text_projection ? text_projection->forward(at_ends).to(at::kFloat) : at_ends};
}

}  // namespace kinora::models
