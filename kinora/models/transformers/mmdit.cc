#include "kinora/models/transformers/mmdit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/run_block.h"
#include "kinora/models/transformers/caption_inputs.h"
#include "kinora/models/transformers/transformer_family.h"

// Shapes: B batch, T frames of patches, S patches of a frame, N = T S, L text tokens, C hidden,
// D = C / H, G side of the table of positions.

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kRotaryPeriod = 10000.0;
constexpr double kGuidanceScale = 1000.0;  // as times are
constexpr size_t kAxes = 3;                // frame, row, column

bool has_table(const TransformerConfig& config) {
  return config.rotary_axes.empty();
}

/// Dims of the weights that embed patches: Flux' are linears.
int64_t patch_dims(const TransformerConfig& config) {
  return has_table(config) ? 2 : 1;
}

/// For the embedder of given frames: which ones they are, and what they show.
ModelConfig of_given(ModelConfig config) {
  config.in_channels += 1;
  return config;
}

/// fp64 positions of a table's rows, or of its columns.
at::Tensor table_positions(const TransformerConfig& config) {
  return at::arange(config.position_grid, at::kDouble) / config.position_scale;
}

/// Angles for nn::rotated of one axis: positions fp64 [n] -> fp32 [n, dims].
at::Tensor axis_angles(const at::Tensor& positions, int64_t dims) {
  const at::Tensor exponents =
      at::arange(0, dims, 2, positions.options()) / -static_cast<double>(dims);
  return at::outer(positions, at::pow(kRotaryPeriod, exponents))
      .repeat_interleave(2, -1)
      .to(at::kFloat);
}

/// Those of all tokens, the text's at position 0 of every axis: fp32 [L + N, D].
at::Tensor joint_angles(const TransformerConfig& config, const Grid& grid, int64_t text_tokens,
                        at::Device device) {
  const std::array<int64_t, kAxes> sides = {grid.frames, grid.rows, grid.columns};
  Tensors axes;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const at::Tensor angles =
        axis_angles(at::arange(sides[axis], at::TensorOptions(device).dtype(at::kDouble)),
                    config.rotary_axes[axis]);
    std::vector<int64_t> place(kAxes + 1, 1);
    place[axis] = sides[axis];
    place.back() = -1;
    axes.push_back(angles.view(place).expand({sides[0], sides[1], sides[2], -1}));
  }
  return at::constant_pad_nd(at::cat(axes, -1).flatten(0, 2), {0, 0, text_tokens, 0});
}

}  // namespace

MMDiT::MMDiT(const ModelConfig& config)
    : BlockModel(config),
      x_embedder(config, patch_dims(config.transformer)),
      t_embedder(config.transformer.hidden, config.time_scale),
      context_embedder(config.text_channels, config.transformer.hidden,
                       nn::Init::xavier_uniform(config.text_channels, config.transformer.hidden)),
      null_text(at::zeros({config.text_tokens, config.text_channels}, at::kFloat)),
      joint_blocks(config.transformer),
      single_blocks(config.transformer, config.transformer.parallel_depth,
                    config.transformer.depth),
      final_layer(config) {
  const TransformerConfig& own = config.transformer;
  add_child("x_embedder", x_embedder);
  if (own.given_embedders) {
    add_child("cond_embedder", cond_embedder.emplace(of_given(config), patch_dims(own)));
    set_init(*cond_embedder, {"proj.weight"}, nn::Init::zero());
  }
  add_child("t_embedder", t_embedder);
  if (own.guidance > 0) {
    add_child("guidance_embedder", guidance_embedder.emplace(own.hidden, kGuidanceScale));
  }
  if (config.pooled_channels > 0) {
    add_child("y_embedder", y_embedder.emplace(config.pooled_channels, own.hidden));
    null_pooled = at::zeros({config.pooled_channels}, at::kFloat);
    add_buffer("null_pooled", null_pooled);
  }
  if (config.text_encoder.any()) {
    add_child("text_encoder", text_encoder.emplace(config));
  }
  add_child("context_embedder", context_embedder);
  add_buffer("null_text", null_text);
  if (has_table(own)) {
    pos_embed = frame_positions(table_positions(own), table_positions(own), own.hidden).squeeze(0);
    add_buffer("pos_embed", pos_embed);
  }
  add_child("joint_blocks", joint_blocks);
  add_child("single_blocks", single_blocks);
  add_child("final_layer", final_layer);
  final_layer.set_layer(own.depth + own.parallel_depth + 1);
  std::vector<std::string> blocks = numbered("joint_blocks", own.depth);
  const std::vector<std::string> parallel = numbered("single_blocks", own.parallel_depth);
  blocks.insert(blocks.end(), parallel.begin(), parallel.end());
  set_buckets(block_buckets(*this, blocks), {});
}

void MMDiT::resolve(ModelConfig& config, const ModelConfig& published) {
  TransformerConfig& own = config.transformer;
  const TransformerConfig& given = published.transformer;
  const bool is_rotary = std::ranges::count(family_of(config).own_keys, "rotary_axes") > 0;
  if (own.qk_norm == ops::Switch::kAuto) {
    own.qk_norm = given.qk_norm;
  }
  if (own.parallel_depth == 0) {
    own.parallel_depth = given.parallel_depth;
  }
  if (own.second_attention.empty()) {
    own.second_attention = given.second_attention;
  }
  if (own.position_grid == 0) {
    own.position_grid = given.position_grid;
  }
  if (own.guidance == 0) {
    own.guidance = given.guidance;
  }
  if (given.position_scale != 1.0 && own.position_scale == 1.0) {
    own.position_scale = given.position_scale;
  }
  own.given_embedders |= given.given_embedders;
  if (own.rotary_axes.empty()) {
    own.rotary_axes = given.rotary_axes;
  }
  resolve_transformer(config, published);
  KINORA_CHECK(own.patch_frames == 1, kConfig, "[model] model.patch_frames must be 1 for ",
               family_of(config).name, ", got ", own.patch_frames);
  const int64_t head = own.hidden / own.heads;
  if (is_rotary && own.rotary_axes.empty()) {
    // An eighth for frames, as Flux has it, the rest for rows and columns.
    const int64_t frame = head / 16 * 2;
    own.rotary_axes = {frame, (head - frame) / 4 * 2, head - frame - (head - frame) / 4 * 2};
  }
  if (!is_rotary && own.position_grid == 0) {
    const Grid grid = grid_of(config);
    own.position_grid = 2 * std::max(grid.rows, grid.columns);
  }
  KINORA_CHECK(
      own.rotary_axes.empty() ||
          (own.rotary_axes.size() == kAxes &&
           std::accumulate(own.rotary_axes.begin(), own.rotary_axes.end(), int64_t{0}) == head &&
           std::ranges::all_of(own.rotary_axes, [](int64_t dims) { return dims % 2 == 0; })),
      kConfig, "[model] model.rotary_axes must be 3 even numbers whose sum is that of a head's ",
      head, " dims (model.hidden / model.heads), got ", at::IntArrayRef(own.rotary_axes));
  for (const int64_t block : own.second_attention) {
    KINORA_CHECK(block < own.depth, kConfig,
                 "[model] model.second_attention must be blocks from 0 to ", own.depth - 1,
                 ", got ", block);
  }
}

double MMDiT::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  const TransformerConfig& own = config.transformer;
  const auto text = static_cast<double>(config.text_tokens);
  const double all = text + m.tokens;
  const auto mlp_width = static_cast<double>(own.mlp_hidden());
  const double scores = 2 * all * all * m.hidden;
  const double square = m.hidden * m.hidden;
  const double joint = all * (4 * square + 2 * m.hidden * mlp_width) + scores + 2 * m.modulation;
  const double parallel = all * (4 * square + 2 * m.hidden * mlp_width) + scores + m.modulation / 2;
  double total =
      m.model(joint) + static_cast<double>(own.parallel_depth) * parallel +
      text * static_cast<double>(config.text_channels) * m.hidden +
      static_cast<double>(own.second_attention.size()) * (m.attention(m.tokens) + m.modulation / 2);
  if (own.parallel_depth == 0) {  // the last block's text goes no further
    total -= text * (square + 2 * m.hidden * mlp_width) + m.modulation * 4 / 6;
  }
  return total;
}

void MMDiT::to_device(const at::Device& device) {
  BlockModel::to_device(device);
  if (text_encoder) {
    text_encoder->to_device(device);
  }
}

at::Tensor MMDiT::null_caption() const {
  return text_encoder ? at::Tensor() : null_text;
}

at::Tensor MMDiT::condition(const at::Tensor& t, const diffusion::Conditions& conditions) const {
  at::Tensor c = t_embedder.forward(t);
  if (guidance_embedder) {
    c = c + guidance_embedder->forward(at::full_like(t, config().transformer.guidance));
  }
  if (!y_embedder) {
    return c;
  }
  const at::Tensor& pooled = conditions.pooled;
  KINORA_CHECK(pooled.defined() && pooled.dim() == 2 && pooled.size(0) == t.size(0) &&
                   pooled.size(1) == config().pooled_channels,
               kShape, "[model] ", config().name, " needs pooled captions, [", t.size(0), ", ",
               config().pooled_channels, "]",
               pooled.defined() ? ", got " + c10::str(pooled.sizes()) : "");
  const at::Tensor& null = conditions.null_text;
  return c + y_embedder->forward(
                 null.defined() ? at::where(null.unsqueeze(1), null_pooled, pooled.to(at::kFloat))
                                : pooled);
}

at::Tensor MMDiT::embed_text(const diffusion::Conditions& conditions) const {
  at::Tensor text = text_encoder
                        ? text_encoder->embed_captions(conditions.tokens, conditions.text_lengths)
                        : conditions.text;
  KINORA_CHECK(text.dim() == 3 && text.size(1) <= config().text_tokens &&
                   text.size(2) == config().text_channels,
               kShape, "[model] text must have shape [B, up to ", config().text_tokens, ", ",
               config().text_channels, "], got ", text.sizes());
  if (const at::Tensor& null = conditions.null_text; null.defined()) {
    text =
        at::where(null.view({-1, 1, 1}), null_text.narrow(0, 0, text.size(1)), text.to(at::kFloat));
  }
  return context_embedder.forward(text).to(at::kFloat).unsqueeze(1);
}

at::Tensor MMDiT::positions(const Grid& grid) const {
  const int64_t side = config().transformer.position_grid;
  KINORA_CHECK(grid.rows <= side && grid.columns <= side, kShape, "[model] ", config().name,
               " has positions for ", side, " x ", side, " patches (model.position_grid), got ",
               grid.rows, " x ", grid.columns);
  return pos_embed.view({1, side, side, -1})
      .narrow(1, (side - grid.rows) / 2, grid.rows)
      .narrow(2, (side - grid.columns) / 2, grid.columns)
      .flatten(1, 2)
      .unsqueeze(0);
}

at::Tensor MMDiT::embed_image(const at::Tensor& x_t,
                              const diffusion::Conditions& conditions) const {
  at::Tensor x = x_embedder.forward(to_patches(config(), x_t));  // [B, T, S, C]
  if (cond_embedder) {
    at::Tensor shown = at::zeros_like(x_t);
    at::Tensor is_given = at::zeros_like(x_t.narrow(1, 0, 1));
    if (conditions.frame_mask.defined()) {
      KINORA_CHECK(conditions.given.defined(), kShape,
                   "[model] with model.given_embedders a frame mask needs the given frames");
      const int64_t frames = x_t.dim() == 5 ? x_t.size(2) : 1;
      std::vector<int64_t> place = {x_t.size(0), 1, frames, 1, 1};
      if (x_t.dim() == 4) {
        place.pop_back();
      }
      is_given = is_given + conditions.frame_mask.logical_not().view(place);
      shown = conditions.given * is_given;
    }
    x = x + cond_embedder->forward(to_patches(of_given(config()), at::cat({is_given, shown}, 1)));
  }
  if (pos_embed.defined()) {
    x = x + positions(grid_of(config(), x_t));
  }
  return x.flatten(1, 2).unsqueeze(1);
}

at::Tensor MMDiT::predict(const at::Tensor& x_t, const at::Tensor& t,
                          const diffusion::Conditions& conditions,
                          const diffusion::Pass& /*pass*/) {
  check_caption_inputs(config(), x_t, t, conditions);
  const TransformerConfig& own = config().transformer;
  const Grid grid = grid_of(config(), x_t);
  Tensors streams = {embed_text(conditions), embed_image(x_t, conditions)};
  const int64_t text_tokens = streams[0].size(2);
  JointInputs inputs;
  if (!pos_embed.defined()) {
    inputs.rotary = joint_angles(own, grid, text_tokens, x_t.device());
  }
  if (!pads_captions(config())) {
    const at::Tensor lengths = caption_lengths(config(), conditions);
    const at::Tensor is_word = at::arange(text_tokens, lengths.options()) < lengths.unsqueeze(1);
    inputs.attended =
        at::constant_pad_nd(is_word, {0, streams[1].size(2)}, true).unsqueeze(1).unsqueeze(1);
  }
  const at::Tensor c = condition(t, conditions);
  const auto run = [&](int64_t use, const auto& block_forward) {
    const auto body = [block_forward, inputs](const Tensors& in) {
      JointInputs its = inputs;
      its.condition = in.back();
      return block_forward(in, its);
    };
    streams = run_block(body, std::move(streams), {c}, use < recompute_blocks(), hook(),
                        block_bucket(use));
  };
  for (int64_t i = 0; i < own.depth; ++i) {
    run(i, [&block = joint_blocks[i]](const Tensors& in, const JointInputs& its) {
      return block.forward({in[0], in[1]}, its);
    });
  }
  if (own.parallel_depth > 0) {
    streams = {at::cat(streams, 2)};
  }
  for (int64_t i = 0; i < own.parallel_depth; ++i) {
    run(own.depth + i, [&block = single_blocks[i]](const Tensors& in, const JointInputs& its) {
      return Tensors{block.forward(in[0], its)};
    });
  }
  const at::Tensor& x = streams.back();
  const at::Tensor image = x.narrow(2, x.size(2) - grid.frames * grid.tokens_a_frame(),
                                    grid.frames * grid.tokens_a_frame());
  at::Tensor patches =
      final_layer.forward(image, c).view({x_t.size(0), grid.frames, grid.tokens_a_frame(), -1});
  if (!has_table(own)) {  // Flux' line has a patch's channels outermost, on both sides
    patches = patches.unflatten(-1, {-1, own.patch_volume()}).transpose(-1, -2).flatten(-2);
  }
  return tapped(from_patches(config(), patches, x_t));
}

}  // namespace kinora::models
