#include "kinora/models/unets/own_clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "kinora/models/text_encoders/ragged_attention.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

at::Tensor trained(const nn::Parameter& parameter) {
  return ops::with_gradient(parameter.value, parameter.grad);
}

}  // namespace

OwnClip::OwnClip(const TextEncoderSize& size)
    : ClipTextEncoder({.vocab_size = size.vocab,
                       .hidden_size = size.width,
                       .intermediate_size = size.mlp,
                       .num_hidden_layers = size.layers,
                       .num_attention_heads = size.heads,
                       .max_position_embeddings = size.positions,
                       .activation = size.activation}),
      new_tokens{.shape = {size.new_tokens, size.width},
                 .init = nn::Init::zero(),
                 .value = {},
                 .grad = {}} {
  if (size.new_tokens > 0) {
    add_parameter("new_tokens", new_tokens);
  }
  for (const auto& [path, parameter] : named_parameters()) {
    parameter->fp32_island = true;
  }
  set_layer(0);  // it lies before the blocks
}

at::Tensor OwnClip::embed_tokens(const at::Tensor& tokens) const {
  const int64_t vocabulary = token_embedding.shape[0];
  if (new_tokens.shape[0] == 0) {
    return at::embedding(trained(token_embedding), tokens);
  }
  return at::where((tokens >= vocabulary).unsqueeze(-1),
                   at::embedding(trained(new_tokens), (tokens - vocabulary).clamp_min(0)),
                   at::embedding(trained(token_embedding), tokens.clamp_max(vocabulary - 1)));
}

at::Tensor OwnClip::embed(const at::Tensor& tokens) const {
  const RaggedRows rows = RaggedRows::padded(at::ones_like(tokens, at::kBool));
  at::Tensor x = (embed_tokens(tokens) + trained(position_embedding).narrow(0, 0, tokens.size(1)))
                     .flatten(0, 1);  // [B * L, C]
  for (const std::unique_ptr<ClipBlock>& block : blocks) {
    x = block->forward(x, rows);
  }
  return final_layer_norm.forward(x).unflatten(0, {tokens.size(0), tokens.size(1)});
}

}  // namespace kinora::models
