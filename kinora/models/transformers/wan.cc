#include "kinora/models/transformers/wan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include "kinora/core/error.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/nn/rotary.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, N = T S, L text tokens, C hidden,
// H heads, D = C / H.

namespace kinora::models {
namespace {

constexpr int64_t kWanVectors = 6;

nn::Linear projection(int64_t hidden, int64_t parts) {
  return {hidden, parts * hidden, nn::Init::xavier_uniform(hidden, parts * hidden)};
}

/// [B, tokens, C] -> [B, H, tokens, D].
at::Tensor in_heads(const at::Tensor& x, int64_t num_heads) {
  return x.unflatten(-1, {num_heads, -1}).transpose(1, 2);
}

/// q: [B, H, N, D]. Returns [B, N, C].
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2);
}

/// Dims of a head that turn by frame, row and column.
std::vector<int64_t> wan_axes(const TransformerConfig& config) {
  const int64_t head = config.hidden / config.heads;
  const int64_t side = head / 6 * 2;
  return {head - 2 * side, side, side};
}

}  // namespace

JoinedHeadNorms::JoinedHeadNorms(const TransformerConfig& config)
    : q_norm(config.hidden), k_norm(config.hidden) {
  add_child("q_norm", q_norm);
  add_child("k_norm", k_norm);
}

WanSelfAttention::WanSelfAttention(const TransformerConfig& config)
    : num_heads_(config.heads),
      qkv(projection(config.hidden, 3)),
      proj(projection(config.hidden, 1)),
      norms_(config) {
  add_child("qkv", qkv);
  add_child("proj", proj);
  add_child("", norms_);
}

at::Tensor WanSelfAttention::forward(const at::Tensor& x, const at::Tensor& rotary) const {
  const std::vector<at::Tensor> parts = qkv.forward(x.flatten(1, 2)).chunk(3, -1);  // [B, N, C]
  const at::Tensor q = nn::rotated(in_heads(norms_.q_norm.forward(parts[0]), num_heads_), rotary);
  const at::Tensor k = nn::rotated(in_heads(norms_.k_norm.forward(parts[1]), num_heads_), rotary);
  return tapped(proj.forward(attend(q, k, in_heads(parts[2], num_heads_))).view_as(x));
}

WanTextAttention::WanTextAttention(const TransformerConfig& config)
    : num_heads_(config.heads),
      q_linear(projection(config.hidden, 1)),
      kv_linear(projection(config.hidden, 2)),
      proj(projection(config.hidden, 1)),
      norms_(config) {
  add_child("q_linear", q_linear);
  add_child("kv_linear", kv_linear);
  add_child("proj", proj);
  add_child("", norms_);
}

at::Tensor WanTextAttention::forward(const at::Tensor& x, const at::Tensor& text) const {
  const at::Tensor q =
      in_heads(norms_.q_norm.forward(q_linear.forward(x.flatten(1, 2))), num_heads_);
  const std::vector<at::Tensor> kv = kv_linear.forward(text).chunk(2, -1);
  const at::Tensor k = in_heads(norms_.k_norm.forward(kv[0]), num_heads_);
  return tapped(proj.forward(attend(q, k, in_heads(kv[1], num_heads_))).view_as(x));
}

WanBlock::WanBlock(const TransformerConfig& config)
    : attn(config),
      cross_norm(config.hidden, 1e-6),
      cross_attn(config),
      mlp(config.hidden, config.mlp_hidden(), config.hidden),
      scale_shift_table(random_table(kWanVectors, config.hidden)) {
  add_child("attn", attn);
  add_child("cross_norm", cross_norm);
  add_child("cross_attn", cross_attn);
  add_child("mlp", mlp);
  add_parameter("scale_shift_table", scale_shift_table);
}

at::Tensor WanBlock::forward(const at::Tensor& x, const BlockConditions& conditions,
                             const nn::Sequence& sequence, const at::Tensor& rotary) const {
  const auto result = [&sequence](ops::BranchKind kind, const auto& compute) {
    return sequence.branch(kind, [&] { return std::vector{compute()}; })[0];
  };
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor mixed = gated_sum(x, m[2], result(ops::BranchKind::kSpace, [&] {
                                       return attn.forward(modulated_norm(x, m[0], m[1]), rotary);
                                     }));
  const at::Tensor y = mixed + result(ops::BranchKind::kText, [&] {
                         return cross_attn.forward(cross_norm.forward(mixed), conditions.text);
                       });
  return tapped(gated_sum(y, m[5], sequence.mlp(mlp, modulated_norm(y, m[3], m[4]))));
}

at::Tensor WanBlock::first_norm(const at::Tensor& x, const BlockConditions& conditions) const {
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  return modulated_norm(x, m[0], m[1]);
}

at::Tensor WanBlock::table() const {
  return ops::with_gradient(scale_shift_table.value, scale_shift_table.grad);
}

Wan::Wan(const ModelConfig& config) : CaptionModel(config), blocks(config.transformer) {
  y_embedder.null_caption().zero_();
  add_child("blocks", blocks);
  set_block_buckets(numbered("blocks", config.transformer.depth), {}, {});
}

void Wan::resolve(ModelConfig& config, const ModelConfig& published) {
  TransformerConfig& own = config.transformer;
  if (own.mlp_ratio == TransformerConfig{}.mlp_ratio) {
    own.mlp_ratio = published.transformer.mlp_ratio;
  }
  resolve_transformer(config, published);
  const int64_t head = own.hidden / own.heads;
  KINORA_CHECK(head % 2 == 0, kConfig,
               "[wan] model.hidden / model.heads must be even for its rotary embedding, got ",
               head);
}

double Wan::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.attention(m.tokens) + m.cross_attention + m.mlp) + m.modulation + m.captions;
}

at::Tensor Wan::null_caption() const {
  return text_encoder ? at::Tensor() : y_embedder.null_caption();
}

CaptionModel::TimeVectors Wan::time_vectors(const at::Tensor& t,
                                            const diffusion::Conditions& conditions) const {
  const FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  return {condition, modulation_vectors(t_block, condition)};
}

std::vector<at::Tensor> Wan::tables() const {
  return tables_of(blocks, config().transformer.depth);
}

at::Tensor Wan::filled_text(const diffusion::Conditions& conditions) const {
  const at::Tensor text =
      text_encoder ? text_encoder->embed_captions(conditions.tokens, conditions.text_lengths)
                   : conditions.text;
  KINORA_CHECK(text.dim() == 3 && text.size(1) <= config().text_tokens, kShape,
               "[model] text must have shape [B, up to ", config().text_tokens, ", ",
               config().text_channels, "], got ", text.sizes());
  at::Tensor lengths = caption_lengths(config(), conditions);
  at::Tensor states = text;
  if (const at::Tensor& null = conditions.null_text; null.defined()) {
    lengths = at::where(null, 1, lengths);
    states = at::where(null.view({-1, 1, 1}), y_embedder.null_caption()[0], text.to(at::kFloat));
  }
  const at::Tensor is_word = at::arange(text.size(1), lengths.options()) < lengths.unsqueeze(1);
  return y_embedder.forward(at::constant_pad_nd(at::where(is_word.unsqueeze(2), states, 0.0),
                                                {0, 0, 0, config().text_tokens - text.size(1)}),
                            {});
}

at::Tensor Wan::predict(const at::Tensor& x_t, const at::Tensor& t,
                        const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const TransformerConfig& own = config().transformer;
  const at::Tensor rotary =
      clip_angles(wan_axes(own), grid_of(config(), x_t), x_t.device()).flatten(0, 1);
  const TimeVectors of_time = time_vectors(t, conditions);
  const BlockConditions inputs = {
      .vectors = of_time.vectors, .text = filled_text(conditions), .text_lengths = {}};
  const at::Tensor x = x_embedder.forward(to_patches(config(), x_t));  // [B, T, S, C]
  const std::shared_ptr<const nn::Sequence> tokens = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, own.depth, pass,
      [&](int64_t i, const at::Tensor& clip) {
        return run_plain(i, i < recompute_blocks(), clip, inputs,
                         [&tokens = *tokens, &block = blocks[i], rotary](
                             const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, tokens, rotary);
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
