#include "kinora/models/transformers/wan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/where.h>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/caption_inputs.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/nn/rotary.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, N = T S, L text tokens, M states of
// images, C hidden, H heads, D = C / H.

namespace kinora::models {
namespace {

constexpr int64_t kWanVectors = 6;
constexpr double kWanRotaryBase = 10000.0;
constexpr double kWanNormEpsilon = 1e-6;

nn::Linear projection(int64_t hidden, int64_t parts) {
  return {hidden, parts * hidden, nn::Init::xavier_uniform(hidden, parts * hidden)};
}

/// Dims of a head that turn by frame, row and column.
std::vector<int64_t> wan_axes(const TransformerConfig& config) {
  const int64_t head = config.hidden / config.heads;
  const int64_t side = head / 6 * 2;
  return {head - 2 * side, side, side};
}

}  // namespace

WanSelfAttention::WanSelfAttention(const TransformerConfig& config)
    : num_heads_(config.heads),
      qkv(projection(config.hidden, 3)),
      proj(projection(config.hidden, 1)),
      norms_(config.hidden, kWanNormEpsilon) {
  add_child("qkv", qkv);
  add_child("proj", proj);
  add_child("", norms_);
}

at::Tensor WanSelfAttention::forward(const at::Tensor& x, const at::Tensor& rotary) const {
  const std::vector<at::Tensor> parts = qkv.forward(x.flatten(1, 2)).chunk(3, -1);  // [B, N, C]
  const at::Tensor q = nn::rotated(in_heads(norms_.q_norm.forward(parts[0]), num_heads_), rotary);
  const at::Tensor k = nn::rotated(in_heads(norms_.k_norm.forward(parts[1]), num_heads_), rotary);
  return tapped(proj.forward(attend_heads(q, k, in_heads(parts[2], num_heads_))).view_as(x));
}

WanImageKeys::WanImageKeys(const TransformerConfig& config)
    : image_kv_linear(projection(config.hidden, 2)), image_k_norm(config.hidden) {
  add_child("image_kv_linear", image_kv_linear);
  add_child("image_k_norm", image_k_norm);
}

at::Tensor WanImageKeys::attend(const at::Tensor& q, const at::Tensor& images) const {
  const int64_t num_heads = q.size(1);
  const std::vector<at::Tensor> kv = image_kv_linear.forward(images).chunk(2, -1);
  return attend_heads(q, in_heads(image_k_norm.forward(kv[0]), num_heads),
                      in_heads(kv[1], num_heads));
}

WanTextAttention::WanTextAttention(const TransformerConfig& config)
    : num_heads_(config.heads),
      q_linear(projection(config.hidden, 1)),
      kv_linear(projection(config.hidden, 2)),
      proj(projection(config.hidden, 1)),
      norms_(config.hidden, kWanNormEpsilon) {
  add_child("q_linear", q_linear);
  add_child("kv_linear", kv_linear);
  add_child("proj", proj);
  add_child("", norms_);
  if (config.image_channels > 0) {
    images_.emplace(config);
    add_child("", *images_);
  }
}

at::Tensor WanTextAttention::forward(const at::Tensor& x, const at::Tensor& context,
                                     int64_t num_images) const {
  const at::Tensor q =
      in_heads(norms_.q_norm.forward(q_linear.forward(x.flatten(1, 2))), num_heads_);
  const at::Tensor text = context.narrow(1, num_images, context.size(1) - num_images);
  const std::vector<at::Tensor> kv = kv_linear.forward(text).chunk(2, -1);
  const at::Tensor k = in_heads(norms_.k_norm.forward(kv[0]), num_heads_);
  at::Tensor said = attend_heads(q, k, in_heads(kv[1], num_heads_));
  if (images_) {
    said = said + images_->attend(q, context.narrow(1, 0, num_images));
  }
  return tapped(proj.forward(said).view_as(x));
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
                             const nn::Sequence& sequence, const at::Tensor& rotary,
                             int64_t num_images) const {
  const auto result = [&sequence](ops::BranchKind kind, const auto& compute) {
    return sequence.branch(kind, [&] { return std::vector{compute()}; })[0];
  };
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor mixed = gated_sum(x, m[2], result(ops::BranchKind::kSpace, [&] {
                                       return attn.forward(modulated_norm(x, m[0], m[1]), rotary);
                                     }));
  const at::Tensor y =
      mixed + result(ops::BranchKind::kText, [&] {
        return cross_attn.forward(cross_norm.forward(mixed), conditions.text, num_images);
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

WanImageEmbedder::WanImageEmbedder(const TransformerConfig& config)
    : channels_(config.image_channels),
      positions{.shape = {config.image_positions, config.image_channels},
                .init = nn::Init::zero(),
                .fp32_island = true,
                .value = {},
                .grad = {}},
      norm1(config.image_channels),
      fc1(projection(config.image_channels, 1)),
      fc2(config.image_channels, config.hidden,
          nn::Init::xavier_uniform(config.image_channels, config.hidden)),
      norm2(config.hidden) {
  if (config.image_positions > 0) {
    add_parameter("positions", positions);
  }
  add_child("norm1", norm1);
  add_child("fc1", fc1);
  add_child("fc2", fc2);
  add_child("norm2", norm2);
}

at::Tensor WanImageEmbedder::forward(const at::Tensor& states) const {
  const int64_t places = positions.shape.front();
  KINORA_CHECK(
      states.defined() && states.dim() == 3 && states.size(2) == channels_ &&
          (places == 0 || states.size(1) == places),
      kShape, "[wan] states of given frames must have shape [B, ",
      places == 0 ? "M" : std::to_string(places), ", ", channels_, "], got ",
      states.defined() ? states.sizes() : at::IntArrayRef(),
      ". Hint: a model of first and last frames reads those of both, another of the first");
  const at::Tensor placed =
      places == 0 ? states : states + ops::with_gradient(positions.value, positions.grad);
  return norm2.forward(fc2.forward(at::gelu(fc1.forward(norm1.forward(placed)))));
}

Wan::Wan(const ModelConfig& config) : CaptionModel(config), blocks(config.transformer) {
  y_embedder.null_caption().zero_();
  if (config.transformer.image_channels > 0) {
    image_embedder.emplace(config.transformer);
    add_child("image_embedder", *image_embedder);
  }
  add_child("blocks", blocks);
  set_block_buckets(numbered("blocks", config.transformer.depth), {}, {});
}

void Wan::resolve(ModelConfig& config, const ModelConfig& published) {
  TransformerConfig& own = config.transformer;
  if (own.mlp_ratio == TransformerConfig{}.mlp_ratio) {
    own.mlp_ratio = published.transformer.mlp_ratio;
  }
  const TransformerConfig& given = published.transformer;
  own.given_embedders |= given.given_embedders;
  own.image_channels = own.image_channels == 0 ? given.image_channels : own.image_channels;
  own.image_positions = own.image_positions == 0 ? given.image_positions : own.image_positions;
  KINORA_CHECK(own.image_channels == 0 || own.given_embedders, kConfig,
               "[wan] model.image_channels are of models with model.given_embedders, got ",
               own.image_channels);
  KINORA_CHECK(own.image_positions == 0 || own.image_channels > 0, kConfig,
               "[wan] model.image_positions needs model.image_channels, got ", own.image_positions);
  resolve_transformer(config, published);
  const int64_t head = own.hidden / own.heads;
  KINORA_CHECK(head % 2 == 0, kConfig,
               "[wan] model.hidden / model.heads must be even for its rotary embedding, got ",
               head);
}

double Wan::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  const auto channels = static_cast<double>(config.transformer.image_channels);
  const auto states = static_cast<double>(transformer_shape(config).image_states);
  const double images = 2 * states * m.hidden * (m.hidden + m.tokens);  // of a block
  return m.model(m.attention(m.tokens) + m.cross_attention + images + m.mlp) + m.modulation +
         m.captions + states * channels * (channels + m.hidden);
}

at::Tensor Wan::null_caption() const {
  return text_encoder ? at::Tensor() : y_embedder.null_caption();
}

CaptionModel::TimeVectors Wan::time_vectors(const at::Tensor& t,
                                            const diffusion::Conditions& conditions) const {
  const FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  return {condition, modulation_vectors(t_block, condition)};
}

at::Tensor Wan::table(int64_t use) const {
  return blocks[use].table();
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

at::Tensor Wan::compute(const at::Tensor& x_t, const at::Tensor& t,
                        const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const TransformerConfig& own = config().transformer;
  const at::Tensor rotary =
      clip_angles(wan_axes(own), grid_of(config(), x_t), x_t.device(), kWanRotaryBase)
          .flatten(0, 1);
  const TimeVectors of_time = time_vectors(t, conditions);
  at::Tensor context = filled_text(conditions);
  int64_t num_images = 0;
  if (image_embedder) {
    const at::Tensor images = image_embedder->forward(conditions.image_prompt).to(context.dtype());
    num_images = images.size(1);
    context = at::cat({images, context}, 1);
  }
  const BlockConditions inputs = {.vectors = of_time.vectors, .text = context, .text_lengths = {}};
  ModelConfig input = config();
  input.in_channels += channels_beside(input);
  const at::Tensor x =
      x_embedder.forward(to_patches(input, with_shown(config(), x_t, conditions)));  // [B, T, S, C]
  const std::shared_ptr<const nn::Sequence> tokens = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, own.depth, pass,
      [&](int64_t i, const at::Tensor& clip) {
        return run_plain(i, i < recompute_blocks(), clip, inputs,
                         [&tokens = *tokens, &block = blocks[i], rotary, num_images](
                             const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, tokens, rotary, num_images);
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
