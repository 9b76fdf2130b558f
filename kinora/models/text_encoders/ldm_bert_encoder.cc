#include "kinora/models/text_encoders/ldm_bert_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"

// Shapes: T rows of all texts, C width, H heads, D channels of a head.

namespace kinora::models {
namespace {

nn::Init init() {
  constexpr double kStd = 0.02;
  return nn::Init::normal(kStd);
}

}  // namespace

LdmBertBlock::LdmBertBlock(const LdmBertConfig& config)
    : k_proj(config.d_model, config.encoder_attention_heads * config.head_dim, init(), false),
      v_proj(config.d_model, config.encoder_attention_heads * config.head_dim, init(), false),
      q_proj(config.d_model, config.encoder_attention_heads * config.head_dim, init(), false),
      out_proj(config.encoder_attention_heads * config.head_dim, config.d_model, init(), true),
      self_attn_layer_norm(config.d_model),
      fc1(config.d_model, config.encoder_ffn_dim, init(), true),
      fc2(config.encoder_ffn_dim, config.d_model, init(), true),
      final_layer_norm(config.d_model),
      num_heads_(config.encoder_attention_heads),
      head_dim_(config.head_dim),
      activation_(config.activation) {
  add_child("self_attn.k_proj", k_proj);
  add_child("self_attn.v_proj", v_proj);
  add_child("self_attn.q_proj", q_proj);
  add_child("self_attn.out_proj", out_proj);
  add_child("self_attn_layer_norm", self_attn_layer_norm);
  add_child("fc1", fc1);
  add_child("fc2", fc2);
  add_child("final_layer_norm", final_layer_norm);
}

at::Tensor LdmBertBlock::forward(const at::Tensor& x, const RaggedRows& rows) const {
  const at::Tensor normed = self_attn_layer_norm.forward(x).to(q_proj.type());
  const auto heads = [&](const TextLinear& linear) {
    return linear.forward(normed).unflatten(1, {num_heads_, head_dim_});  // [T, H, D]
  };
  const at::Tensor attended =
      ragged_attention(heads(q_proj), heads(k_proj), heads(v_proj), rows,
                       {.scale = 1.0 / std::sqrt(static_cast<double>(head_dim_))});  // [T, H * D]
  const at::Tensor middle = x + out_proj.forward(attended);
  return tapped(middle +
                fc2.forward(activate(activation_, fc1.forward(final_layer_norm.forward(middle)))));
}

std::vector<TextLinear*> LdmBertBlock::linears() {
  return {&q_proj, &k_proj, &v_proj, &out_proj, &fc1, &fc2};
}

LdmBertEncoder::LdmBertEncoder(const LdmBertConfig& config)
    : config_(config),
      embed_tokens_{
          .shape = {config.vocab_size, config.d_model}, .init = init(), .value = {}, .grad = {}},
      embed_positions_{.shape = {config.max_position_embeddings, config.d_model},
                       .init = init(),
                       .value = {},
                       .grad = {}},
      layer_norm_(config.d_model) {
  add_parameter("model.embed_tokens.weight", embed_tokens_);
  add_parameter("model.embed_positions.weight", embed_positions_);
  for (int64_t i = 0; i < config.encoder_layers; ++i) {
    blocks_.push_back(std::make_unique<LdmBertBlock>(config));
    blocks_.back()->set_layer(i + 1);
    add_child("model.layers." + std::to_string(i), *blocks_.back());
  }
  layer_norm_.set_layer(config.encoder_layers + 1);
  add_child("model.layer_norm", layer_norm_);
}

std::string LdmBertEncoder::block_path(int64_t block) const {
  return "model.layers." + std::to_string(block) + ".";
}

std::vector<TextLinear*> LdmBertEncoder::linears() {
  std::vector<TextLinear*> linears;
  for (const std::unique_ptr<LdmBertBlock>& block : blocks_) {
    const std::vector<TextLinear*> own = block->linears();
    linears.insert(linears.end(), own.begin(), own.end());
  }
  return linears;
}

TextStates LdmBertEncoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  check(tokens, layer);
  const int64_t longest = std::ranges::max(tokens.lengths);
  KINORA_CHECK(longest <= config_.max_position_embeddings, kShape,
               "[bert] a text must have at most ", config_.max_position_embeddings,
               " tokens, the positions, got ", longest, ". Hint: a tokenizer truncates texts");
  const at::Device device = embed_positions_.value.device();
  std::vector<at::Tensor> places;
  places.reserve(tokens.lengths.size());
  for (const int64_t length : tokens.lengths) {
    places.push_back(at::arange(length, at::kLong));
  }
  const RaggedRows rows(tokens.lengths, device, RaggedRows::unit_for(device), tokens.attended);
  at::Tensor x = embed(tokens, embed_tokens_, device) +
                 at::embedding(ops::with_gradient(embed_positions_.value, embed_positions_.grad),
                               at::cat(places).to(device));  // fp32 [T, C]
  for (int64_t i = 0; i < num_blocks() - layer.before_last; ++i) {
    x = with_block(i, [&] { return blocks_[static_cast<size_t>(i)]->forward(x, rows); });
  }
  return {
      .states = layer.normed ? layer_norm_.forward(x) : x, .lengths = tokens.lengths, .pooled = {}};
}

nn::Naming from_x_transformer(int64_t blocks) {
  nn::Naming naming = {{.path = "token_emb.weight", .keys = {"model.embed_tokens.weight"}},
                       {.path = "pos_emb.emb.weight", .keys = {"model.embed_positions.weight"}}};
  const auto add = [&naming](const std::string& theirs, const std::string& ours) {
    for (const char* end : {".weight", ".bias"}) {
      naming.push_back({.path = theirs + end, .keys = {ours + end}});
    }
  };
  add("norm", "model.layer_norm");
  for (int64_t block = 0; block < blocks; ++block) {
    const std::string ours = "model.layers." + std::to_string(block) + ".";
    // Attention and the MLP are layers of their own, each with its norm.
    const std::string attention = "attn_layers.layers." + std::to_string(2 * block) + ".";
    const std::string mlp = "attn_layers.layers." + std::to_string(2 * block + 1) + ".";
    add(attention + "0", ours + "self_attn_layer_norm");
    for (const auto& [theirs, own] : {std::pair{"to_q", "q_proj"},
                                      {"to_k", "k_proj"},
                                      {"to_v", "v_proj"},
                                      {"to_out", "out_proj"}}) {
      add(attention + "1." + theirs, ours + "self_attn." + own);
    }
    add(mlp + "0", ours + "final_layer_norm");
    add(mlp + "1.net.0.0", ours + "fc1");
    add(mlp + "1.net.2", ours + "fc2");
  }
  return naming;
}

}  // namespace kinora::models
