#include "kinora/models/transformers/cogvideox.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/diffusion/spacing.h"
#include "kinora/models/families.h"
#include "kinora/models/run_block.h"
#include "kinora/models/transformers/caption_inputs.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, N = T S, L text tokens, C hidden,
// D = C / H.

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kStreamVectors = 3;  // shift, scale and gate of a stream
constexpr double kCogNormEpsilon = 1e-5;
constexpr double kHeadNormEpsilon = 1e-6;
constexpr double kCogRotaryBase = 10000.0;
constexpr int64_t kTimeChannels = 512;  // as published
constexpr int64_t kCogAxes = 3;         // frames, rows, columns
constexpr int64_t kPositionUnit = 16;   // dims that the axes of positions can share

at::Tensor modulated(const at::Tensor& norm, const at::Tensor& shift, const at::Tensor& scale) {
  return at::addcmul(shift, norm, scale + 1.0);
}

/// streams + gate * added, whose text lies behind the clip.
Tensors with_added(const Tensors& streams, const Tensors& m, const at::Tensor& added) {
  const int64_t clip = streams[0].size(2);
  return {gated_sum(streams[0], m[2], added.narrow(2, 0, clip)),
          gated_sum(streams[1], m[kStreamVectors + 2], added.narrow(2, clip, streams[1].size(2)))};
}

/// Dims of a head that turn by frame, row and column.
std::vector<int64_t> cog_axes(int64_t head) {
  return {head / 4, head / 8 * 3, head / 8 * 3};
}

/// Positions of sinusoids over a grid: [1, 1, N, C].
at::Tensor sinusoids(const TransformerConfig& config, const Grid& grid, const at::Device& device) {
  const int64_t of_time = config.hidden / 4;
  const auto along = [&](int64_t count, double scale) {
    return at::arange(count, at::TensorOptions(device).dtype(at::kDouble)) / scale;
  };
  const at::Tensor frames =
      sin_cos_positions(along(grid.frames, config.time_position_scale), of_time)
          .view({1, grid.frames, 1, of_time})
          .expand({1, grid.frames, grid.tokens_a_frame(), of_time});
  const at::Tensor places =
      frame_positions(along(grid.rows, config.position_scale),
                      along(grid.columns, config.position_scale), config.hidden - of_time)
          .expand({1, grid.frames, grid.tokens_a_frame(), config.hidden - of_time});
  return at::cat({frames, places}, -1).flatten(1, 2).unsqueeze(1);
}

/// Where `count` rows stand that lie in a picture of base rows from `begin` to `end`.
at::Tensor spread(int64_t begin, int64_t end, int64_t count, const at::Device& device) {
  const double last =
      static_cast<double>(end) * static_cast<double>(count - 1) / static_cast<double>(count);
  return at::linspace(static_cast<double>(begin), last, count,
                      at::TensorOptions(device).dtype(at::kDouble));
}

/// Where frames, rows and columns stand. Patches of one frame: a picture is fitted into that of
/// base_grid, in its middle. Of more: each is one.
Tensors rotary_positions(const TransformerConfig& config, const Grid& grid,
                         const at::Device& device) {
  const auto counted = [&](int64_t count) {
    return at::arange(count, at::TensorOptions(device).dtype(at::kDouble));
  };
  if (config.patch_frames > 1) {
    return {counted(grid.frames), counted(grid.rows), counted(grid.columns)};
  }
  const auto rows = static_cast<double>(grid.rows);
  const auto columns = static_cast<double>(grid.columns);
  const int64_t base_rows = config.base_grid[1];
  const int64_t base_columns = config.base_grid[2];
  int64_t fitted_rows = base_rows;
  int64_t fitted_columns = base_columns;
  if (rows / columns > static_cast<double>(base_rows) / static_cast<double>(base_columns)) {
    fitted_columns = diffusion::round_half_even(static_cast<double>(base_rows) / rows * columns);
  } else {
    fitted_rows = diffusion::round_half_even(static_cast<double>(base_columns) / columns * rows);
  }
  const auto before = [](int64_t base, int64_t fitted) {
    return diffusion::round_half_even(static_cast<double>(base - fitted) / 2.0);
  };
  const int64_t top = before(base_rows, fitted_rows);
  const int64_t left = before(base_columns, fitted_columns);
  return {counted(grid.frames), spread(top, top + fitted_rows, grid.rows, device),
          spread(left, left + fitted_columns, grid.columns, device)};
}

/// A clip whose frames are whole patches: its first frame is there as often again as is missing.
at::Tensor with_whole_patches(const at::Tensor& x, int64_t patch_frames) {
  const at::Tensor clip = x.dim() == 4 ? x.unsqueeze(2) : x;
  const int64_t missing = (patch_frames - clip.size(2) % patch_frames) % patch_frames;
  return missing == 0 ? clip
                      : at::cat({clip.narrow(2, 0, 1).expand({-1, -1, missing, -1, -1}), clip}, 2);
}

/// Dims of the weight that embeds patches: 1.5's are a linear's.
int64_t cog_patch_dims(const TransformerConfig& config) {
  return config.patch_frames > 1 ? 1 : 2;
}

/// Vectors of both streams that are given beside those that blocks make of c: none.
at::Tensor no_vectors(const at::Tensor& c) {
  return at::empty({2 * c.size(0), 0}, c.options());
}

void keep_wide(nn::LayerNorm& norm) {
  norm.weight.fp32_island = true;
  norm.bias.fp32_island = true;
}

}  // namespace

StreamsNorm::StreamsNorm(const TransformerConfig& config)
    : norm(config.hidden, kCogNormEpsilon),
      adaLN_modulation(config.hidden, 2 * kStreamVectors, false, config.time_channels) {
  add_child("norm", norm);
  add_child("adaLN_modulation", adaLN_modulation);
}

Tensors StreamsNorm::vectors(const at::Tensor& condition) const {
  return adaLN_modulation.forward(condition);
}

at::Tensor StreamsNorm::of_clip(const at::Tensor& clip, const Tensors& m) const {
  return modulated(norm.forward(clip), m[0], m[1]);
}

at::Tensor StreamsNorm::forward(const Tensors& streams, const Tensors& m) const {
  return at::cat({of_clip(streams[0], m),
                  modulated(norm.forward(streams[1]), m[kStreamVectors], m[kStreamVectors + 1])},
                 2);
}

at::Tensor StreamsNorm::seam_vectors(const at::Tensor& condition) const {
  const at::Tensor weight = ops::with_gradient(norm.weight.value, norm.weight.grad).to(at::kFloat);
  const at::Tensor bias = ops::with_gradient(norm.bias.value, norm.bias.grad).to(at::kFloat);
  const Tensors m = vectors(condition);  // [B, 1, 1, C]
  Tensors streams;
  for (const size_t first : {size_t{0}, static_cast<size_t>(kStreamVectors)}) {
    const at::Tensor scale = m[first + 1] + 1.0;
    // Of x_hat * weight + bias.
    streams.push_back(
        at::cat({at::addcmul(m[first], bias, scale), weight * scale - 1.0, m[first + 2]}, 2));
  }
  return at::cat(streams, 1);
}

std::vector<at::Tensor> StreamsNorm::gradients() const {
  std::vector<at::Tensor> all = gradients_of(adaLN_modulation.weights());
  all.insert(all.end(), {norm.weight.grad, norm.bias.grad});
  return all;
}

SharedAttention::SharedAttention(const TransformerConfig& config)
    : head_size_(config.hidden / config.heads),
      qkv(projection(config.hidden, 3)),
      proj(projection(config.hidden, 1)),
      q_norm(head_size_, kHeadNormEpsilon),
      k_norm(head_size_, kHeadNormEpsilon) {
  const nn::Stretch heads{config.hidden, config.heads};
  qkv.set_cut({nn::Cut::Dim::kOutputs, {heads, heads, heads}});
  proj.set_cut({nn::Cut::Dim::kInputs, {heads}});
  for (nn::LayerNorm* norm : {&q_norm, &k_norm}) {
    norm->weight.is_partial = true;
    norm->bias.is_partial = true;
  }
  add_child("qkv", qkv);
  add_child("proj", proj);
  add_child("q_norm", q_norm);
  add_child("k_norm", k_norm);
}

at::Tensor SharedAttention::forward(const at::Tensor& x, const JointTokens& tokens) const {
  const std::vector<int64_t> own = {tokens.own_image, tokens.own_text};
  if (tokens.sequence->makes_streams()) {
    const std::vector<nn::UnmadeStream> streams =
        unmade_streams(x, qkv.weights(), qkv.weight.shape.front() / (3 * head_size_), tokens,
                       [this](const at::Tensor& all) { return normed(all); });
    return tapped(proj.forward(at::cat(attend_unmade(streams, tokens), 2)));
  }
  const at::Tensor packed = normed(qkv.forward(x).squeeze(1).unflatten(-1, {3, -1, head_size_}));
  return tapped(proj.forward(at::cat(attend_jointly(packed.split_with_sizes(own, 1), tokens), 2)));
}

at::Tensor SharedAttention::normed(const at::Tensor& packed) const {
  const Tensors parts = packed.unbind(2);
  return at::stack({q_norm.forward(parts[0]), k_norm.forward(parts[1]), parts[2]}, 2);
}

ops::SelfAttentionBody SharedAttention::body(const FastJoint& joint) const {
  ops::HeadRule rule = joint.rotation;
  rule.q_weight = q_norm.weight.value.detach();
  rule.k_weight = k_norm.weight.value.detach();
  rule.q_bias = q_norm.bias.value.detach();
  rule.k_bias = k_norm.bias.value.detach();
  rule.q_weight_grad = q_norm.weight.grad;
  rule.k_weight_grad = k_norm.weight.grad;
  rule.q_bias_grad = q_norm.bias.grad;
  rule.k_bias_grad = k_norm.bias.grad;
  rule.epsilon = kHeadNormEpsilon;
  const ops::LinearWeights first = qkv.weights();
  const int64_t heads = first.weight.size(0) / (3 * head_size_);
  ops::SelfAttentionBody body{.qkv = first,
                              .proj = proj.weights(),
                              .heads = heads,
                              .length = joint.tokens.own_image + joint.tokens.own_text,
                              .rule = rule,
                              .keys = joint.keys};
  attend_among_ranks(joint.tokens, /*has_text=*/true, &body);
  return body;
}

CogVideoXBlock::CogVideoXBlock(const TransformerConfig& config)
    : norm1(config),
      attn(config),
      norm2(config),
      mlp(config.hidden, config.mlp_hidden(), config.hidden) {
  add_child("norm1", norm1);
  add_child("attn", attn);
  add_child("norm2", norm2);
  add_child("mlp", mlp);
}

Tensors CogVideoXBlock::forward(const Tensors& streams, const JointInputs& inputs,
                                bool ends) const {
  const nn::Sequence& sequence = *inputs.tokens.sequence;
  const Tensors m1 = norm1.vectors(inputs.condition);
  const Tensors attended = sequence.branch(ops::BranchKind::kSpace, [&] {
    return Tensors{attn.forward(norm1.forward(streams, m1), inputs.tokens)};
  });
  const Tensors mixed = with_added(streams, m1, attended[0]);
  const Tensors m2 = norm2.vectors(inputs.condition);
  const Tensors hidden = sequence.branch(ops::BranchKind::kMlp, [&] {
    return Tensors{mlp.forward(ends ? norm2.of_clip(mixed[0], m2) : norm2.forward(mixed, m2))};
  });
  Tensors out =
      ends ? Tensors{gated_sum(mixed[0], m2[2], hidden[0])} : with_added(mixed, m2, hidden[0]);
  out[0] = tapped(out[0]);
  return out;
}

at::Tensor CogVideoXBlock::first_norm(const at::Tensor& clip, const at::Tensor& condition) const {
  return norm1.of_clip(clip, norm1.vectors(condition));
}

ops::Block CogVideoXBlock::fast(const FastJoint& joint) const {
  ops::VectorFunction vectors;
  vectors.function = [this](const at::Tensor& condition) {
    return at::cat({norm1.seam_vectors(condition), norm2.seam_vectors(condition)}, 2)
        .view({2 * condition.size(0), -1});
  };
  for (const StreamsNorm* norm : {&norm1, &norm2}) {
    const Tensors own = norm->gradients();
    std::ranges::copy_if(own, std::back_inserter(vectors.gradients), &at::Tensor::defined);
  }
  ops::Branch attention{.body = attn.body(joint),
                        .seam = {.shift = 0, .scale = 1, .gate = 2},
                        .kept = joint.kept(ops::BranchKind::kSpace)};
  ops::Branch hidden{.body = mlp.body(),
                     .seam = {.shift = 3, .scale = 4, .gate = 5},
                     .kept = joint.kept(ops::BranchKind::kMlp)};
  return {.branches = {std::move(attention), std::move(hidden)},
          .num_vectors = 2 * kStreamVectors,
          .vectors = std::move(vectors)};
}

std::vector<nn::Linear*> CogVideoXBlock::linears() {
  std::vector<nn::Linear*> all = attn.linears();
  all.insert(all.end(), {&mlp.fc1, &mlp.fc2});
  return all;
}

CogVideoXFinalLayer::CogVideoXFinalLayer(const ModelConfig& config)
    : norm(config.transformer.hidden, kCogNormEpsilon),
      norm_out(config.transformer.hidden, kCogNormEpsilon),
      adaLN_modulation(config.transformer.hidden, 2, true, config.transformer.time_channels),
      linear(config.transformer.hidden, config.transformer.patch_volume() * config.out_channels(),
             nn::Init::zero(), {.fp32_island = true}) {
  keep_wide(norm);
  keep_wide(norm_out);
  add_child("norm", norm);
  add_child("norm_out", norm_out);
  add_child("adaLN_modulation", adaLN_modulation);
  add_child("linear", linear);
}

at::Tensor CogVideoXFinalLayer::forward(const at::Tensor& x, const at::Tensor& condition) const {
  const Tensors m = adaLN_modulation.forward(condition);  // shift, scale
  return tapped(linear.forward(modulated(norm_out.forward(norm.forward(x)), m[0], m[1])));
}

CogVideoX::CogVideoX(const ModelConfig& config)
    : BlockModel(config),
      x_embedder(config, cog_patch_dims(config.transformer)),
      t_embedder(config.transformer.time_channels, config.time_scale, config.transformer.hidden),
      context_embedder(config.text_channels, config.transformer.hidden,
                       nn::Init::xavier_uniform(config.text_channels, config.transformer.hidden)),
      null_text(at::zeros({config.text_tokens, config.text_channels}, at::kFloat)),
      blocks(config.transformer),
      final_layer(config),
      sliding_windows_(config.transformer.sliding_window, SlidingWindow::Tiles::kClip) {
  const TransformerConfig& own = config.transformer;
  add_child("x_embedder", x_embedder);
  add_child("t_embedder", t_embedder);
  if (own.ofs > 0) {
    add_child("ofs_embedder", ofs_embedder.emplace(own.time_channels, 1.0, own.time_channels));
  }
  if (config.text_encoder.any()) {
    add_child("text_encoder", text_encoder.emplace(config));
  }
  context_embedder.set_cut(nn::Cut::of_whole_inputs(config.text_channels));
  add_child("context_embedder", context_embedder);
  add_buffer("null_text", null_text);
  if (own.learned_positions) {
    const Grid grid{own.base_grid[0], own.base_grid[1], own.base_grid[2]};
    pos_embed = at::cat({at::zeros({1, config.text_tokens, own.hidden}, at::kFloat),
                         sinusoids(own, grid, at::kCPU).squeeze(1)},
                        1);
    add_buffer("pos_embed", pos_embed);
  }
  add_child("blocks", blocks);
  add_child("final_layer", final_layer);
  final_layer.set_layer(own.depth + 1);
  set_buckets(block_buckets(*this, numbered("blocks", own.depth)), linears_of(blocks, own.depth));
}

void CogVideoX::resolve(ModelConfig& config, const ModelConfig& published) {
  TransformerConfig& own = config.transformer;
  const TransformerConfig& given = published.transformer;
  const TransformerConfig unset;
  if (own.position_scale == unset.position_scale) {
    own.position_scale = given.position_scale;
  }
  if (own.ofs == 0.0) {
    own.ofs = given.ofs;
  }
  if (own.time_channels == 0) {
    own.time_channels = kTimeChannels;
  }
  if (own.base_grid.empty()) {
    own.base_grid = given.base_grid;
  }
  own.rotary_3d |= given.rotary_3d;
  own.learned_positions |= given.learned_positions;
  own.given_embedders |= given.given_embedders;
  resolve_transformer(config, published);
  if (own.base_grid.empty()) {
    const Grid grid = grid_of(config);
    own.base_grid = {grid.frames, grid.rows, grid.columns};
  }
  KINORA_CHECK(std::ssize(own.base_grid) == kCogAxes, kConfig,
               "[model] model.base_grid must be frames, rows and columns, got ",
               own.base_grid.size(), " numbers");
  const int64_t head = own.hidden / own.heads;
  KINORA_CHECK(!own.rotary_3d || head % kPositionUnit == 0, kConfig,
               "[model] model.hidden / model.heads must be a multiple of ", kPositionUnit,
               " for the rotary positions of ", family_of(config).name, ", got ", head);
  KINORA_CHECK(own.hidden % kPositionUnit == 0, kConfig,
               "[model] model.hidden must be a multiple of ", kPositionUnit,
               " for the positions of ", family_of(config).name, ", got ", own.hidden);
  KINORA_CHECK(own.time_channels % 2 == 0, kConfig,
               "[model] model.time_channels must be even, got ", own.time_channels);
  KINORA_CHECK(!own.learned_positions || (own.rotary_3d && own.patch_frames == 1), kConfig,
               "[model] model.learned_positions are beside rotary ones, of patches of one frame. "
               "Hint: model.rotary_3d=true, model.patch_frames=1");
}

double CogVideoX::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  const TransformerConfig& own = config.transformer;
  const auto text = static_cast<double>(config.text_tokens);
  const auto mlp_width = static_cast<double>(own.mlp_hidden());
  const auto time = static_cast<double>(own.time_channels);
  const double all = text + m.tokens;
  const double attended =
      all * window_share(config, SlidingWindow::Tiles::kClip, config.text_tokens);
  const double block = all * (4 * m.hidden * m.hidden + 2 * m.hidden * mlp_width) +
                       2 * all * attended * m.hidden + 4 * kStreamVectors * m.hidden * time;
  return m.model(block) + text * static_cast<double>(config.text_channels) * m.hidden -
         text * 2 * m.hidden * mlp_width;  // the last block's text goes no further
}

void CogVideoX::to_device(const at::Device& device) {
  BlockModel::to_device(device);
  if (text_encoder) {
    text_encoder->to_device(device);
  }
}

at::Tensor CogVideoX::null_caption() const {
  return text_encoder ? at::Tensor() : null_text;
}

at::Tensor CogVideoX::condition(const at::Tensor& t) const {
  const at::Tensor c = t_embedder.forward(t);
  return ofs_embedder ? c + ofs_embedder->forward(at::full_like(t, config().transformer.ofs)) : c;
}

at::Tensor CogVideoX::positions(const Grid& grid, const at::Device& device) const {
  const TransformerConfig& own = config().transformer;
  if (!own.learned_positions) {
    return own.rotary_3d ? at::Tensor() : sinusoids(own, grid, device);
  }
  KINORA_CHECK(grid.rows == own.base_grid[1] && grid.columns == own.base_grid[2], kShape,
               "[model] ", config().name, " has a table of positions for ", own.base_grid[1], " x ",
               own.base_grid[2], " patches (model.base_grid), got ", grid.rows, " x ",
               grid.columns);
  if (grid.frames != own.base_grid[0]) {  // diffusers, too
    return sinusoids(own, grid, device);
  }
  const int64_t text = config().text_tokens;
  return pos_embed.narrow(1, text, pos_embed.size(1) - text).unsqueeze(1);
}

at::Tensor CogVideoX::plain_blocks(const Streams& streams, const at::Tensor& c,
                                   const JointTokens& tokens, const diffusion::Pass& pass) const {
  const int64_t count = num_blocks();
  const auto all = [&](Streams in, int64_t first, int64_t end) {
    for (int64_t use = first; use < end; ++use) {
      const auto body = [&block = blocks[use], tokens,
                         ends = use + 1 == count](const Tensors& inputs) {
        return block.forward({inputs[0], inputs[1]},
                             JointInputs{.condition = inputs[2], .tokens = tokens}, ends);
      };
      in = run_block(body, std::move(in), {c}, use < recompute_blocks(), hook(), block_bucket(use));
    }
    return in;
  };
  return through_blocks(streams, count, pass, all, [&] { return first_norm(streams[0], c); });
}

ops::BlockStack CogVideoX::fast_stack(const FastJoint& joint, const diffusion::Pass& pass) const {
  std::vector<ops::Block> own;
  for (const int64_t use : blocks_of(pass)) {
    own.push_back(blocks[use].fast(joint));
  }
  ops::BlockStack stacked = stack(std::move(own), pass);
  stacked.norm_epsilon = kCogNormEpsilon;
  stacked.has_final_norm = false;
  return stacked;
}

at::Tensor CogVideoX::fast_blocks(const Streams& streams, const at::Tensor& c,
                                  const JointTokens& tokens, const diffusion::Pass& pass) const {
  const ops::BlockStack stacked = fast_stack({tokens, pass.cache}, pass);
  ops::StackInputs inputs{
      .x = {}, .vectors = pass.prepared.of_times, .first_rows = tokens.own_image};
  if (!inputs.vectors.defined()) {
    inputs.condition = c;
    inputs.vectors = no_vectors(c);
  }
  if (runs_in_pieces(pass) && inputs.condition.defined()) {
    inputs.vectors = stack_vectors(stacked, c, inputs.vectors);
    inputs.condition = at::Tensor();
  }
  const auto all = [&](const Streams& in, int64_t first, int64_t end) {
    inputs.x = at::cat(in, 2);
    const at::Tensor out = runs_in_pieces(pass) ? run_piece(stacked, inputs, first, end)[0]
                                                : run_joint(stacked, inputs)[0];
    const at::Tensor clip = out.narrow(2, 0, tokens.own_image);
    return end == num_blocks()
               ? Streams{clip}
               : Streams{clip.contiguous(),
                         out.narrow(2, tokens.own_image, tokens.own_text).contiguous()};
  };
  const at::ScalarType type = compute_type();
  return through_blocks({streams[0].to(type), streams[1].to(type)}, num_blocks(), pass, all,
                        [&] { return first_norm(streams[0], c); });
}

diffusion::Prepared CogVideoX::prepare(const at::Tensor& times,
                                       const diffusion::Conditions& conditions) {
  (void)BlockModel::prepare(times, conditions);
  const at::Tensor captions = captions_of(config(), conditions);
  if (pipeline() != nullptr || !captions.defined()) {
    return {};  // forward says what is missing
  }
  diffusion::Prepared prepared;
  prepared.of_texts = prepared_states(config(), text_encoder, null_text, conditions);
  if (!is_fast_with_heads()) {
    return prepared;
  }
  JointTokens tokens;
  tokens.sequence = &sequence();
  const ops::BlockStack stacked = fast_stack({tokens, nullptr}, {});
  const int64_t batch = captions.size(0);
  const int64_t columns = num_blocks() * 2 * kStreamVectors * config().transformer.hidden;
  if (2 * times.size(0) * batch * columns * static_cast<int64_t>(sizeof(float)) >
      diffusion::Prepared::kMaxBytes) {
    return prepared;
  }
  const at::Tensor c = condition(times.repeat_interleave(batch));
  prepared.of_times = stack_vectors(stacked, c, no_vectors(c)).view({times.size(0), -1, columns});
  return prepared;
}

at::Tensor CogVideoX::first_norm(const at::Tensor& clip, const at::Tensor& c) const {
  at::Tensor h;
  with_bucket(block_bucket(0), [&] { h = blocks[0].first_norm(clip, c); });
  return h;
}

at::Tensor CogVideoX::compute(const at::Tensor& x_t, const at::Tensor& t,
                              const diffusion::Conditions& conditions,
                              const diffusion::Pass& pass) {
  check_caption_inputs(config(), x_t, t, conditions);
  const TransformerConfig& own = config().transformer;
  const Grid grid = grid_of(config(), x_t);
  const at::Device device = x_t.device();
  ModelConfig input = config();
  input.in_channels += channels_beside(input);
  const at::Tensor clip =
      with_whole_patches(with_shown(config(), x_t, conditions), own.patch_frames);
  const at::Tensor states =
      caption_states(config(), text_encoder, null_text, conditions, pass.prepared);
  const auto one_frame = [](const at::Tensor& patches) {
    return patches.flatten(1, 2).unsqueeze(1);  // [B, 1, N, C]
  };
  const SlidingWindow* const window =
      sliding_windows_.any() ? &sliding_windows_.of(grid, states.size(1), device) : nullptr;
  at::Tensor image =
      x_embedder.forward(own_tokens(sequence(), window, one_frame(to_patches(input, clip))));
  at::Tensor text = context_embedder.forward(sequence().enter(states.unsqueeze(1))).to(at::kFloat);
  if (const at::Tensor added = positions(grid, device); added.defined()) {
    image = image + own_tokens(sequence(), window, added);
  }
  if (pos_embed.defined() && grid.frames == own.base_grid[0]) {
    text = text + sequence().enter(pos_embed.narrow(1, 0, states.size(1)).unsqueeze(1));
  }
  const std::shared_ptr<const nn::Sequence> lies = sequence_of(pass);
  JointTokens tokens{.sequence = lies.get(),
                     .image = grid.frames * grid.tokens_a_frame(),
                     .text = states.size(1),
                     .own_image = image.size(2),
                     .own_text = text.size(2),
                     .text_lengths = read_lengths(config(), conditions),
                     .blocks = window != nullptr ? window->blocks() : nullptr};
  if (own.rotary_3d) {
    const at::Tensor angles = clip_angles(cog_axes(own.hidden / own.heads),
                                          rotary_positions(own, grid, device), kCogRotaryBase);
    tokens.image_angles =
        ready_angles(tokens, window, angles.flatten(0, 1).unsqueeze(0).unsqueeze(0));
  }
  const at::Tensor c = condition(t);
  at::Tensor out;
  if (is_fast_with_heads()) {
    tokens.kernels = &fast_pass({}, 0).kernels;
    out = fast_blocks({image, text}, c, tokens, pass);
  } else {
    out = plain_blocks({image, text}, c, tokens, pass);
  }
  if (!out.defined()) {
    return {};
  }
  const at::Tensor patches =
      all_tokens(sequence(), window, final_layer.forward(out.to(at::kFloat), c), tokens.image)
          .view({x_t.size(0), grid.frames, grid.tokens_a_frame(), -1});
  const at::Tensor whole = from_patches(config(), channels_fastest(config(), patches),
                                        clip.narrow(1, 0, config().in_channels));
  const int64_t frames = x_t.dim() == 4 ? 1 : x_t.size(2);
  const at::Tensor predicted = whole.narrow(2, whole.size(2) - frames, frames);
  return tapped(x_t.dim() == 4 ? predicted.squeeze(2) : predicted);
}

}  // namespace kinora::models
