#include "kinora/models/text_encoders/clip_block.h"

#include <ATen/TensorOperators.h>

#include <cmath>

#include "kinora/core/error.h"

// Shapes: T rows, C width, H heads, D channels of a head.

namespace kinora::models {
namespace {

/// Smaller in front of the residual stream.
nn::Init inner_init(const ClipBlockConfig& config) {
  return nn::Init::normal(clip_std(config.width) * clip_std(2 * config.num_blocks));
}

}  // namespace

double clip_std(int64_t width) {
  return 1.0 / std::sqrt(static_cast<double>(width));
}

ClipBlock::ClipBlock(const ClipBlockConfig& config)
    : k_proj(config.width, config.width, inner_init(config), true),
      v_proj(config.width, config.width, inner_init(config), true),
      q_proj(config.width, config.width, inner_init(config), true),
      out_proj(config.width, config.width, nn::Init::normal(clip_std(config.width)), true),
      layer_norm1(config.width, config.layer_norm_eps),
      fc1(config.width, config.hidden, nn::Init::normal(clip_std(2 * config.width)), true),
      fc2(config.hidden, config.width, inner_init(config), true),
      layer_norm2(config.width, config.layer_norm_eps),
      num_heads_(config.num_heads),
      activation_(config.activation),
      causal_(config.causal) {
  KINORA_CHECK(config.width % config.num_heads == 0, kConfig,
               "[clip] num_attention_heads must divide hidden_size ", config.width, ", got ",
               config.num_heads);
  add_child("self_attn.k_proj", k_proj);
  add_child("self_attn.v_proj", v_proj);
  add_child("self_attn.q_proj", q_proj);
  add_child("self_attn.out_proj", out_proj);
  add_child("layer_norm1", layer_norm1);
  add_child("mlp.fc1", fc1);
  add_child("mlp.fc2", fc2);
  add_child("layer_norm2", layer_norm2);
}

at::Tensor ClipBlock::forward(const at::Tensor& x, const RaggedRows& rows) const {
  const at::Tensor normed = layer_norm1.forward(x).to(q_proj.type());
  const auto heads = [&](const TextLinear& linear) {
    return linear.forward(normed).unflatten(1, {num_heads_, -1});  // [T, H, D]
  };
  const at::Tensor q = heads(q_proj);
  const at::Tensor attended = ragged_attention(
      q, heads(k_proj), heads(v_proj), rows,
      {.scale = 1.0 / std::sqrt(static_cast<double>(q.size(2))), .causal = causal_});  // [T, C]
  const at::Tensor middle = x + out_proj.forward(attended);
  const at::Tensor hidden = activate(activation_, fc1.forward(layer_norm2.forward(middle)));
  return tapped(middle + fc2.forward(hidden));
}

std::vector<TextLinear*> ClipBlock::linears() {
  return {&q_proj, &k_proj, &v_proj, &out_proj, &fc1, &fc2};
}

}  // namespace kinora::models
