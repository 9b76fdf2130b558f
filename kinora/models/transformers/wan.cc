#include "kinora/models/transformers/wan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/caption_inputs.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/nn/self_attention.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, N = T S, L text tokens, M states of
// images, C hidden, H heads, D = C / H.

namespace kinora::models {
namespace {

constexpr int64_t kWanVectors = 6;
constexpr double kWanRotaryBase = 10000.0;
constexpr double kWanNormEpsilon = 1e-6;

/// Dims of a head that turn by frame, row and column.
std::vector<int64_t> wan_axes(const TransformerConfig& config) {
  const int64_t head = config.hidden / config.heads;
  const int64_t side = head / 6 * 2;
  return {head - 2 * side, side, side};
}

}  // namespace

WanBlock::WanBlock(const TransformerConfig& config)
    : attn(config, kWanNormEpsilon),
      cross_norm(config.hidden, kWanNormEpsilon),
      cross_attn(config, kWanNormEpsilon),
      mlp(config.hidden, config.mlp_hidden(), config.hidden),
      scale_shift_table(random_table(kWanVectors, config.hidden)) {
  add_child("attn", attn);
  add_child("cross_norm", cross_norm);
  add_child("cross_attn", cross_attn);
  add_child("mlp", mlp);
  add_parameter("scale_shift_table", scale_shift_table);
  // Read before the blocks, as the table is.
  cross_norm.weight.fp32_island = true;
  cross_norm.bias.fp32_island = true;
}

at::Tensor WanBlock::forward(const at::Tensor& x, const BlockConditions& conditions,
                             const nn::Sequence& sequence, const ClipTokens& tokens,
                             int64_t num_images) const {
  const auto result = [&sequence](ops::BranchKind kind, const auto& compute) {
    return sequence.branch(kind, [&] { return std::vector{compute()}; })[0];
  };
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor mixed =
      gated_sum(x, m[2], result(ops::BranchKind::kSpace, [&] {
                  return attn.forward(modulated_norm(x, m[0], m[1]), tokens, sequence);
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

ops::Block WanBlock::fast(const FastPass& pass, const ClipTokens& tokens,
                          const ops::HeadRule& rotation, int64_t num_images) const {
  ops::Branch attention = attn.fast(pass, tokens, rotation, {.shift = 0, .scale = 1, .gate = 2});
  ops::Branch text{.body = cross_attn.body(num_images),
                   .seam = {.shift = 6, .scale = 7},
                   .kept = pass.kept(ops::BranchKind::kText)};
  return {.branches = {std::move(attention), std::move(text),
                       mlp_branch(pass, mlp, {.shift = 3, .scale = 4, .gate = 5})},
          .num_vectors = kWanVectors + 2};
}

at::Tensor WanBlock::norm_vectors() const {
  return at::stack({ops::with_gradient(cross_norm.bias.value, cross_norm.bias.grad),
                    ops::with_gradient(cross_norm.weight.value, cross_norm.weight.grad) - 1.0});
}

WanImageEmbedder::WanImageEmbedder(const TransformerConfig& config)
    : channels_(config.image_channels),
      positions{.shape = {config.image_positions, config.image_channels},
                .init = nn::Init::zero(),
                .fp32_island = true,
                .value = {},
                .grad = {}},
      norm1(config.image_channels),
      fc1(config.image_channels, config.image_channels,
          nn::Init::xavier_uniform(config.image_channels, config.image_channels)),
      fc2(config.image_channels, config.hidden,
          nn::Init::xavier_uniform(config.image_channels, config.hidden)),
      norm2(config.hidden) {
  if (config.image_positions > 0) {
    add_parameter("positions", positions);
  }
  add_child("norm1", norm1);
  fc1.set_cut({nn::Cut::Dim::kOutputs, {{channels_, channels_}}});
  fc2.set_cut({nn::Cut::Dim::kInputs, {{channels_, channels_}}});
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
  const int64_t depth = config.transformer.depth;
  // What is read of images is projected in each pass.
  set_block_buckets(numbered("blocks", depth), linears_of(blocks, depth),
                    image_embedder ? TextReaders() : readers_of(blocks, depth));
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
  return m.model(m.attention(m.tokens * window_share(config)) + m.cross_attention + images +
                 m.mlp) +
         m.modulation + m.captions + states * channels * (channels + m.hidden);
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

at::Tensor Wan::norm_vectors(int64_t use) const {
  return blocks[use].norm_vectors();
}

int64_t Wan::num_images(const diffusion::Conditions& conditions) const {
  const at::Tensor& images = conditions.image_prompt;
  return image_embedder && images.defined() && images.dim() == 3 ? images.size(1) : 0;
}

at::Tensor Wan::fast_texts(const diffusion::Conditions& conditions) const {
  const at::Tensor text = filled_text(conditions);
  if (!image_embedder) {
    return text;
  }
  return at::cat({image_embedder->forward(conditions.image_prompt).to(text.dtype()), text}, 1);
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
  const Grid grid = grid_of(config(), x_t);
  const ClipTokens places = clip_tokens(
      grid, clip_angles(wan_axes(own), grid, x_t.device(), kWanRotaryBase).unsqueeze(0));
  ModelConfig input = config();
  input.in_channels += channels_beside(input);
  const at::Tensor x = x_embedder.forward(  // [B, T, S', C]
      own_tokens(to_patches(input, with_shown(config(), x_t, conditions)), grid));
  const int64_t images = num_images(conditions);
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame(), pass);
    const ops::HeadRule rotation = nn::head_rule({}, {}, places.rotary);
    std::vector<ops::Block> stacked;
    for (const int64_t use : blocks_of(pass)) {
      stacked.push_back(blocks[use].fast(fast, places, rotation, images));
    }
    return run_fast(std::move(stacked), x, x_t, t, conditions, pass);
  }
  const TimeVectors of_time = time_vectors(t, conditions);
  const BlockConditions inputs = {
      .vectors = of_time.vectors, .text = fast_texts(conditions), .text_lengths = {}};
  const std::shared_ptr<const nn::Sequence> tokens = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, own.depth, pass,
      [&](int64_t i, const at::Tensor& clip) {
        return run_plain(i, i < recompute_blocks(), clip, inputs,
                         [&tokens = *tokens, &block = blocks[i], places, images](
                             const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, tokens, places, images);
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
