#include "kinora/models/text_encoders/llama_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>

#include <cmath>

#include "kinora/core/error.h"

// Shapes: T rows of all texts, C width, H heads, D channels of a head.

namespace kinora::models {
namespace {

constexpr double kStd = 0.02;

TextLinear linear(int64_t in_features, int64_t out_features) {
  return {in_features, out_features, nn::Init::normal(kStd), false};
}

/// x [T, H, D] with dims d and d + D / 2 turned together.
at::Tensor turned(const at::Tensor& x, const LlamaTurns& turns) {
  const std::vector<at::Tensor> halves = x.to(at::kFloat).chunk(2, -1);
  return at::cat({halves[0] * turns.cosines - halves[1] * turns.sines,
                  halves[1] * turns.cosines + halves[0] * turns.sines},
                 -1)
      .to(x.scalar_type());
}

}  // namespace

LlamaBlock::LlamaBlock(const LlamaConfig& config)
    : q_proj(linear(config.hidden_size, config.num_attention_heads * config.head_dim)),
      k_proj(linear(config.hidden_size, config.num_key_value_heads * config.head_dim)),
      v_proj(linear(config.hidden_size, config.num_key_value_heads * config.head_dim)),
      o_proj(linear(config.num_attention_heads * config.head_dim, config.hidden_size)),
      gate_proj(linear(config.hidden_size, config.intermediate_size)),
      up_proj(linear(config.hidden_size, config.intermediate_size)),
      down_proj(linear(config.intermediate_size, config.hidden_size)),
      input_layernorm(config.hidden_size, config.rms_norm_eps),
      post_attention_layernorm(config.hidden_size, config.rms_norm_eps),
      num_heads_(config.num_attention_heads),
      num_key_heads_(config.num_key_value_heads),
      activation_(config.activation) {
  add_child("self_attn.q_proj", q_proj);
  add_child("self_attn.k_proj", k_proj);
  add_child("self_attn.v_proj", v_proj);
  add_child("self_attn.o_proj", o_proj);
  add_child("mlp.gate_proj", gate_proj);
  add_child("mlp.up_proj", up_proj);
  add_child("mlp.down_proj", down_proj);
  add_child("input_layernorm", input_layernorm);
  add_child("post_attention_layernorm", post_attention_layernorm);
}

at::Tensor LlamaBlock::attended(const at::Tensor& normed, const RaggedRows& rows,
                                const LlamaTurns& turns) const {
  const at::Tensor q = turned(q_proj.forward(normed).unflatten(1, {num_heads_, -1}), turns);
  const at::Tensor k = turned(k_proj.forward(normed).unflatten(1, {num_key_heads_, -1}), turns);
  const at::Tensor v = v_proj.forward(normed).unflatten(1, {num_key_heads_, -1});
  const int64_t readers = num_heads_ / num_key_heads_;
  return ragged_attention(
      q, k.repeat_interleave(readers, 1), v.repeat_interleave(readers, 1), rows,
      {.scale = 1.0 / std::sqrt(static_cast<double>(q.size(2))), .causal = true});  // [T, H * D]
}

at::Tensor LlamaBlock::forward(const at::Tensor& x, const RaggedRows& rows,
                               const LlamaTurns& turns) const {
  const at::ScalarType type = q_proj.type();
  const at::Tensor middle =
      x + o_proj.forward(attended(input_layernorm.forward(x).to(type), rows, turns));
  const at::Tensor h = post_attention_layernorm.forward(middle).to(type);
  return tapped(
      middle + down_proj.forward(activate(activation_, gate_proj.forward(h)) * up_proj.forward(h)));
}

std::vector<TextLinear*> LlamaBlock::linears() {
  return {&q_proj, &k_proj, &v_proj, &o_proj, &gate_proj, &up_proj, &down_proj};
}

LlamaEncoder::LlamaEncoder(const LlamaConfig& config)
    : config_(config),
      embed_tokens_{.shape = {config.vocab_size, config.hidden_size},
                    .init = nn::Init::normal(kStd),
                    .value = {},
                    .grad = {}},
      norm_(config.hidden_size, config.rms_norm_eps) {
  KINORA_CHECK(
      config.num_attention_heads % config.num_key_value_heads == 0 && config.head_dim % 2 == 0,
      kConfig,
      "[llama] num_attention_heads must be a multiple of num_key_value_heads and "
      "head_dim even, got ",
      config.num_attention_heads, ", ", config.num_key_value_heads, " and ", config.head_dim);
  add_parameter("embed_tokens.weight", embed_tokens_);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks_.push_back(std::make_unique<LlamaBlock>(config));
    blocks_.back()->set_layer(i + 1);
    add_child("layers." + std::to_string(i), *blocks_.back());
  }
  norm_.set_layer(config.num_hidden_layers + 1);
  add_child("norm", norm_);
}

std::string LlamaEncoder::block_path(int64_t block) const {
  return "layers." + std::to_string(block) + ".";
}

std::vector<TextLinear*> LlamaEncoder::linears() {
  std::vector<TextLinear*> linears;
  for (const std::unique_ptr<LlamaBlock>& block : blocks_) {
    const std::vector<TextLinear*> own = block->linears();
    linears.insert(linears.end(), own.begin(), own.end());
  }
  return linears;
}

LlamaTurns LlamaEncoder::turns_of(const std::vector<int64_t>& lengths, at::Device device) const {
  std::vector<at::Tensor> places;
  places.reserve(lengths.size());
  for (const int64_t length : lengths) {
    places.push_back(at::arange(length, at::kDouble));
  }
  const at::Tensor exponents =
      at::arange(0, config_.head_dim, 2, at::kDouble) / -static_cast<double>(config_.head_dim);
  const at::Tensor angles =
      at::outer(at::cat(places), at::pow(config_.rope_theta, exponents)).unsqueeze(1);
  return {.cosines = angles.cos().to(device, at::kFloat),
          .sines = angles.sin().to(device, at::kFloat)};
}

TextStates LlamaEncoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  return encode_with(tokens, {}, {}, layer);
}

TextStates LlamaEncoder::encode_with(const TextTokens& tokens, const at::Tensor& places,
                                     const at::Tensor& rows, const TextLayer& layer) {
  check(tokens, layer);
  KINORA_CHECK(tokens.attended.empty(), kShape, "[llama] all of a text's tokens are attended to");
  const at::Device device = norm_.weight.value.device();
  const RaggedRows ragged(tokens.lengths, device, RaggedRows::unit_for(device));
  const LlamaTurns turns = turns_of(tokens.lengths, device);
  at::Tensor x = embed(tokens, embed_tokens_, device);
  if (places.defined()) {
    x = x.index_copy(0, places, rows);
  }
  for (int64_t i = 0; i < num_blocks() - layer.before_last; ++i) {
    x = with_block(i, [&] { return blocks_[static_cast<size_t>(i)]->forward(x, ragged, turns); });
  }
  return {.states = layer.normed ? norm_.forward(x) : x, .lengths = tokens.lengths, .pooled = {}};
}

}  // namespace kinora::models
