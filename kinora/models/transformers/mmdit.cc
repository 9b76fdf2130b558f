#include "kinora/models/transformers/mmdit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/kernels/attention.h"
#include "kinora/models/families.h"
#include "kinora/models/run_block.h"
#include "kinora/models/transformers/caption_inputs.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/nn/self_attention.h"

// Shapes: B batch, T frames of patches, S patches of a frame, N = T S, L text tokens, C hidden,
// D = C / H, G side of the table of positions.

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kGuidanceScale = 1000.0;  // as times are
constexpr size_t kAxes = 3;                // frame, row, column
constexpr double kRotaryBase = 10000.0;    // of Flux' line
// As HunyuanVideo was published.
constexpr int64_t kRefinerDepth = 2;
constexpr double kRefinedRotaryBase = 256.0;

bool has_table(const TransformerConfig& config) {
  return config.rotary_axes.empty();
}

bool has_refiner(const TransformerConfig& config) {
  return config.refiner_depth > 0;
}

/// Dims of the weights that embed patches: Flux' are linears, HunyuanVideo's of clips.
int64_t patch_dims(const TransformerConfig& config) {
  if (has_refiner(config)) {
    return 3;
  }
  return has_table(config) ? 2 : 1;
}

/// For the embedder of given frames: which ones they are, and what they show.
ModelConfig of_given(ModelConfig config) {
  config.in_channels += 1;
  return config;
}

/// With what it is shown behind its own channels.
ModelConfig with_channels_beside(ModelConfig config) {
  config.in_channels += channels_beside(config);
  return config;
}

/// fp64 positions of a table's rows, or of its columns.
at::Tensor table_positions(const TransformerConfig& config) {
  return at::arange(config.position_grid, at::kDouble) / config.position_scale;
}

/// All tokens of a stream [B, .., tokens, C] as one frame.
at::Tensor one_frame(const at::Tensor& tokens) {
  return tokens.flatten(1, -2).unsqueeze(1);
}

}  // namespace

MMDiT::MMDiT(const ModelConfig& config)
    : BlockModel(config),
      x_embedder(config, patch_dims(config.transformer)),
      t_embedder(config.transformer.hidden, config.time_scale),
      null_text(at::zeros({config.text_tokens, config.text_channels}, at::kFloat)),
      joint_blocks(config.transformer),
      single_blocks(config.transformer, config.transformer.parallel_depth,
                    config.transformer.depth),
      final_layer(config),
      sliding_windows_(config.transformer.sliding_window, SlidingWindow::Tiles::kClip) {
  const TransformerConfig& own = config.transformer;
  add_child("x_embedder", x_embedder);
  if (own.given_embedders && channels_beside(config) == 0) {
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
  if (has_refiner(own)) {
    add_child("context_embedder", text_refiner.emplace(config));
  } else {
    const nn::Init init = nn::Init::xavier_uniform(config.text_channels, own.hidden);
    add_child("context_embedder", context_embedder.emplace(config.text_channels, own.hidden, init));
    context_embedder->set_cut(nn::Cut::of_whole_inputs(config.text_channels));
  }
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
  std::vector<std::vector<nn::Linear*>> linears;
  for (int64_t i = 0; i < own.depth; ++i) {
    linears.push_back(joint_blocks[i].linears());
  }
  for (int64_t i = 0; i < own.parallel_depth; ++i) {
    linears.push_back(single_blocks[i].linears());
  }
  set_buckets(block_buckets(*this, blocks), std::move(linears));
}

void MMDiT::resolve(ModelConfig& config, const ModelConfig& published) {
  TransformerConfig& own = config.transformer;
  const TransformerConfig& given = published.transformer;
  const auto reads = [&keys = family_of(config).own_keys](const char* key) {
    return std::ranges::count(keys, key) > 0;
  };
  const bool is_rotary = reads("rotary_axes");
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
  own.clean_first_frame |= given.clean_first_frame;
  if (own.input == ShownInput::kPlain) {
    own.input = given.input;
  }
  if (own.refiner_depth == 0 && reads("refiner_depth")) {
    own.refiner_depth = kRefinerDepth;
  }
  if (own.rotary_base == 0 && reads("rotary_base")) {
    own.rotary_base = kRefinedRotaryBase;
  }
  if (own.rotary_axes.empty()) {
    own.rotary_axes = given.rotary_axes;
  }
  resolve_transformer(config, published);
  KINORA_CHECK(own.references == 0 || own.input == ShownInput::kPlain, kConfig,
               "[model] model.references are shown where nothing else is, got model.input ",
               to_string(own.input));
  KINORA_CHECK(!own.clean_first_frame ||
                   (!own.given_embedders && own.references == 0 && own.sliding_window.empty()),
               kConfig,
               "[model] model.clean_first_frame is without model.given_embedders, model.references "
               "and model.sliding_window, got ",
               own.given_embedders  ? "given_embedders"
               : own.references > 0 ? "references"
                                    : "sliding_window");
  KINORA_CHECK(
      own.references == 0 || !own.given_embedders || family_of(config).conditions.given_beside,
      kConfig, "[model] model.references are shown where no frame is, got model.given_embedders");
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
  const double attended = window_share(config, SlidingWindow::Tiles::kClip, config.text_tokens);
  const double scores = 2 * all * all * m.hidden * attended;
  const double square = m.hidden * m.hidden;
  const double joint = all * (4 * square + 2 * m.hidden * mlp_width) + scores + 2 * m.modulation;
  const double parallel = all * (4 * square + 2 * m.hidden * mlp_width) + scores + m.modulation / 2;
  double total =
      m.model(joint) + static_cast<double>(own.parallel_depth) * parallel +
      text * static_cast<double>(config.text_channels) * m.hidden +
      static_cast<double>(own.second_attention.size()) * (m.attention(m.tokens) + m.modulation / 2);
  if (has_refiner(own)) {
    total += TokenRefiner::macs(config);
  }
  if (own.parallel_depth == 0) {  // the last block's text goes no further
    total -= text * (square + 2 * m.hidden * mlp_width) + m.modulation * 4 / 6;
  }
  return total;
}

std::vector<double> MMDiT::block_costs() const {
  // What one more of a kind adds.
  const auto cost_of = [this](int64_t TransformerConfig::*depth) {
    ModelConfig more = config();
    ++(more.transformer.*depth);
    return macs(more) - macs(config());
  };
  std::vector costs(static_cast<size_t>(config().transformer.depth),
                    cost_of(&TransformerConfig::depth));
  if (const auto parallel = static_cast<size_t>(config().transformer.parallel_depth);
      parallel > 0) {
    costs.resize(costs.size() + parallel, cost_of(&TransformerConfig::parallel_depth));
  }
  return costs;
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
  const bool in_two = has_first(conditions);
  if (in_two) {  // at time 0, of which no guidance is told, where the frame is given
    const at::Tensor clean = t_embedder.forward(at::zeros_like(t));
    const at::Tensor noised = conditions.frame_mask.select(1, 0).unsqueeze(1);
    c = at::stack({at::where(noised, c, clean), c}, 1).flatten(0, 1);  // [2 B, C]
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
  const at::Tensor& null =
      conditions.null_pooled.defined() ? conditions.null_pooled : conditions.null_text;
  const at::Tensor y = y_embedder->forward(
      null.defined() ? at::where(null.unsqueeze(1), null_pooled, pooled.to(at::kFloat)) : pooled);
  return c + (in_two ? y.repeat_interleave(2, 0) : y);
}

bool MMDiT::has_first(const diffusion::Conditions& conditions) const {
  const at::Tensor& mask = conditions.frame_mask;
  return config().transformer.clean_first_frame && mask.defined() && mask.size(1) > 1;
}

at::Tensor MMDiT::final_vectors(const at::Tensor& c, int64_t first) const {
  const at::Tensor vectors = final_layer.modulation(of_rest(c, first));
  return first == 0 ? vectors : vectors.repeat_interleave(2, 0);
}

at::Tensor MMDiT::embed_text(const at::Tensor& states, const at::Tensor& lengths,
                             const at::Tensor& t) const {
  if (text_refiner) {
    return sequence().enter(one_frame(text_refiner->forward(states, lengths, t)));
  }
  return context_embedder->forward(sequence().enter(one_frame(states))).to(at::kFloat);
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

at::Tensor MMDiT::patches_of(const at::Tensor& x_t, const diffusion::Conditions& conditions) const {
  const at::Tensor own =
      one_frame(to_patches(with_channels_beside(config()), with_shown(config(), x_t, conditions)));
  return shown_grid(conditions, x_t.size(0)).frames == 0
             ? own
             : at::cat({own, one_frame(to_patches(config(), conditions.beside))}, 2);
}

Grid MMDiT::shown_grid(const diffusion::Conditions& conditions, int64_t batch) const {
  const TransformerConfig& its = config().transformer;
  const at::Tensor& pictures = conditions.beside;
  const bool changes = its.input == ShownInput::kReference;
  if (!changes && (its.references == 0 || !pictures.defined())) {
    return {};
  }
  const auto is_whole = [&](int64_t dim) { return pictures.size(dim) % its.patch == 0; };
  KINORA_CHECK(pictures.defined() && pictures.dim() == (changes ? 4 : 5) &&
                   pictures.size(0) == batch && pictures.size(1) == config().in_channels &&
                   is_whole(-2) && is_whole(-1) && (changes || pictures.size(2) <= its.references),
               kShape, "[model] the pictures that ", config().name, " is shown must have shape [",
               batch, ", ", config().in_channels,
               changes ? "" : ", up to " + std::to_string(its.references),
               ", height, width] in whole patches of ", its.patch, ", got ",
               pictures.defined() ? pictures.sizes() : at::IntArrayRef());
  return grid_of(config(), pictures);
}

at::Tensor MMDiT::angles(const Grid& grid, const Grid& shown, const at::Device& device) const {
  const TransformerConfig& its = config().transformer;
  const double base = its.rotary_base > 0 ? its.rotary_base : kRotaryBase;
  const at::Tensor own = clip_angles(its.rotary_axes, grid, device, base).flatten(0, 1);
  if (shown.frames == 0) {
    return own.unsqueeze(0);
  }
  // Each picture is a frame of its own, with rows and columns of its own: beside a picture frames
  // 1, 2, ..., as Kontext's, and beside a clip, whose length differs, -1, -2, ...
  const int64_t way = grid.frames == 1 ? 1 : -1;
  const auto places = [&device](int64_t count) {
    return at::arange(count, at::TensorOptions(device).dtype(at::kDouble));
  };
  const at::Tensor pictures = clip_angles(
      its.rotary_axes,
      {way * (places(shown.frames) + 1), places(shown.rows), places(shown.columns)}, base);
  return at::cat({own, pictures.flatten(0, 1)}).unsqueeze(0);
}

at::Tensor MMDiT::embed_image(const at::Tensor& x_t, const diffusion::Conditions& conditions,
                              const SlidingWindow* window) const {
  at::Tensor x = x_embedder.forward(
      own_tokens(sequence(), window, patches_of(x_t, conditions)));  // [B, 1, N', C]
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
    const at::Tensor given =
        one_frame(to_patches(of_given(config()), at::cat({is_given, shown}, 1)));
    const Grid pictures = shown_grid(conditions, x_t.size(0));  // which are no frames of the clip
    x = x +
        cond_embedder->forward(own_tokens(
            sequence(), window,
            at::constant_pad_nd(given, {0, 0, 0, pictures.frames * pictures.tokens_a_frame()})));
  }
  return pos_embed.defined() ? x + own_tokens(sequence(), window, positions(grid_of(config(), x_t)))
                             : x;
}

at::Tensor MMDiT::plain_blocks(const Streams& streams, const at::Tensor& c,
                               const JointTokens& tokens, const diffusion::Pass& pass) const {
  const TransformerConfig& own = config().transformer;
  const int64_t count = own.depth + own.parallel_depth;
  const auto run = [&](int64_t use, Streams in, const auto& block_forward) {
    const auto body = [block_forward, tokens](const Tensors& all) {
      return block_forward(all, JointInputs{.condition = all.back(), .tokens = tokens});
    };
    return run_block(body, std::move(in), {c}, use < recompute_blocks(), hook(), block_bucket(use));
  };
  const auto blocks = [&](Streams in, int64_t first, int64_t end) {
    for (int64_t use = first; use < end; ++use) {
      if (use < own.depth) {
        in = run(use, std::move(in),
                 [&block = joint_blocks[use]](const Tensors& all, const JointInputs& its) {
                   return block.forward({all[0], all[1]}, its);
                 });
        continue;
      }
      if (use == own.depth) {
        in = {at::cat(in, 2)};
      }
      in = run(
          use, std::move(in),
          [&block = single_blocks[use - own.depth]](const Tensors& all, const JointInputs& its) {
            return Tensors{block.forward(all[0], its)};
          });
    }
    if (end == count) {
      in = {in[0].narrow(2, 0, tokens.own_image)};
    }
    return in;
  };
  const at::Tensor out = through_blocks(as_read(streams, pass), count, pass, blocks, [&] {
    at::Tensor h;
    with_bucket(block_bucket(0), [&] {
      h = joint_blocks[0].first_norm(streams[0], {.condition = c, .tokens = tokens});
    });
    return h;
  });
  return out.defined() ? final_layer.forward(out, of_rest(c, tokens.first)) : at::Tensor();
}

MMDiT::Stacks MMDiT::stacks(const FastJoint& joint, const diffusion::Pass& pass) const {
  const int64_t depth = config().transformer.depth;
  std::vector<ops::Block> blocks;
  std::vector<ops::LinearWeights> modulation;
  size_t joint_slabs = 0;
  const BlockSpan span = blocks_of(pass);
  for (const int64_t use : span) {
    if (use >= depth) {
      blocks.push_back(single_blocks[use - depth].fast(joint));
      modulation.push_back(single_blocks[use - depth].slab());
      continue;
    }
    blocks.push_back(joint_blocks[use].fast(joint));
    for (ops::LinearWeights& slab : joint_blocks[use].modulation()) {
      modulation.push_back(std::move(slab));
    }
    joint_slabs = modulation.size();
  }
  ops::BlockStack all = stack(std::move(blocks), pass);
  all.modulation = std::move(modulation);
  all.modulation_buckets.assign(all.modulation.size(), -1);
  const int64_t num_joint = std::clamp<int64_t>(depth - span.first, 0, span.size());
  if (num_joint == span.size()) {
    return {.joint = std::move(all), .parallel = std::nullopt};
  }
  if (num_joint == 0) {
    return {.joint = std::nullopt, .parallel = std::move(all)};
  }
  Stacks stacks{.joint = all, .parallel = std::move(all)};
  const auto keep_first = [](auto& values, auto count) {
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(count), values.end());
  };
  const auto drop_first = [](auto& values, auto count) {
    values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
  };
  keep_first(stacks.joint->blocks, num_joint);
  keep_first(stacks.joint->block_buckets, num_joint);
  keep_first(stacks.joint->recomputed, num_joint);
  keep_first(stacks.joint->offloaded, num_joint);
  keep_first(stacks.joint->modulation, joint_slabs);
  keep_first(stacks.joint->modulation_buckets, joint_slabs);
  stacks.joint->has_final_norm = false;
  drop_first(stacks.parallel->blocks, num_joint);
  drop_first(stacks.parallel->block_buckets, num_joint);
  drop_first(stacks.parallel->recomputed, num_joint);
  drop_first(stacks.parallel->offloaded, num_joint);
  drop_first(stacks.parallel->modulation, joint_slabs);
  drop_first(stacks.parallel->modulation_buckets, joint_slabs);
  return stacks;
}

int64_t MMDiT::vector_columns(const ops::BlockStack& stack) const {
  int64_t vectors = 0;
  for (const ops::Block& block : stack.blocks) {
    vectors += block.num_vectors;
  }
  return vectors * config().transformer.hidden;
}

at::Tensor MMDiT::fast_blocks(const Tensors& streams, const at::Tensor& c,
                              const JointTokens& tokens, const diffusion::Pass& pass) const {
  const FastJoint joint(tokens, pass.cache);
  Stacks all = stacks(joint, pass);
  if (runs_in_pieces(pass)) {
    return final_layer.project(fast_pieces(
        all, streams,
        c.defined() ? all_vectors(all, c, final_vectors(c, tokens.first)) : pass.prepared.of_times,
        tokens, pass));
  }
  const bool ends = blocks_of(pass).end == num_blocks();
  const at::Tensor last = c.defined() ? final_vectors(c, tokens.first) : pass.prepared.of_times;
  // Of vectors that are there, the joint blocks' come first.
  const int64_t of_joint = c.defined() || !all.joint ? 0 : vector_columns(*all.joint);
  const auto blocks = [&](Streams in, int64_t /*first*/, int64_t /*end*/) {
    if (all.joint) {
      const bool is_last = !all.parallel && ends;
      all.joint->has_final_norm = is_last;
      const auto out =
          run_joint(std::move(*all.joint), {.x = in[0],
                                            .second = in[1],
                                            .condition = c,
                                            .vectors = is_last ? last : last.narrow(1, 0, of_joint),
                                            .first_rows = tokens.first});
      in = out[1].defined() ? Streams{out[0], out[1]} : Streams{out[0]};
    }
    if (all.parallel) {
      all.parallel->has_final_norm = ends;
      in = {run_joint(std::move(*all.parallel),
                      {.x = in.size() > 1 ? at::cat(in, 2) : in[0],
                       .condition = c,
                       .vectors = ends ? last.narrow(1, of_joint, last.size(1) - of_joint)
                                       : last.narrow(1, 0, 0),
                       .first_rows = tokens.first})[0]};
    }
    return in;
  };
  const at::Tensor h =
      through_blocks(as_read({streams[0].to(compute_type()), streams[1].to(compute_type())}, pass),
                     num_blocks(), pass, blocks, {});
  return h.defined() ? final_layer.project(h.narrow(2, 0, tokens.own_image)) : at::Tensor();
}

MMDiT::Streams MMDiT::as_read(Streams streams, const diffusion::Pass& pass) const {
  return blocks_of(pass).first > config().transformer.depth ? Streams{at::cat(streams, 2)}
                                                            : std::move(streams);
}

at::Tensor MMDiT::fast_pieces(const Stacks& stacks, const Streams& streams,
                              const at::Tensor& vectors, const JointTokens& tokens,
                              const diffusion::Pass& pass) const {
  const int64_t depth = config().transformer.depth;
  const int64_t count = depth + config().transformer.parallel_depth;
  const auto piece = [&](const ops::BlockStack& stack, const Streams& in, int64_t column,
                         int64_t first, int64_t end) {
    return run_piece(stack,
                     {.x = in[0],
                      .second = in.size() > 1 ? in[1] : at::Tensor(),
                      .vectors = vectors.narrow(1, column, vectors.size(1) - column),
                      .first_rows = tokens.first},
                     first, end);
  };
  const auto blocks = [&](Streams in, int64_t first, int64_t end) {
    if (first < depth) {
      in = piece(*stacks.joint, in, 0, first, std::min(end, depth));
    }
    if (end > depth) {
      if (first <= depth) {
        in = {at::cat(in, 2)};
      }
      in = piece(*stacks.parallel, in, vector_columns(*stacks.joint),
                 std::max<int64_t>(first - depth, 0), end - depth);
    }
    if (end == count) {
      in = {in[0].narrow(2, 0, tokens.own_image)};
    }
    return in;
  };
  const at::Tensor rest = of_rest(vectors, tokens.first);
  const auto first_norm = [&] {
    const at::Tensor& image = streams[0];
    const at::Tensor of_others = normed(image, rest, 0);
    if (tokens.first == 0) {
      return of_others;
    }
    const at::Tensor own = vectors.unflatten(0, {-1, 2}).select(1, 0);
    return at::cat({normed(image.narrow(2, 0, tokens.first), own, 0),
                    of_others.narrow(2, tokens.first, image.size(2) - tokens.first)},
                   2);
  };
  const at::Tensor h =
      through_blocks({streams[0].to(compute_type()), streams[1]}, count, pass, blocks, first_norm);
  return normed(h.to(at::kFloat), rest, vectors.size(1) / h.size(-1) - 2);
}

at::Tensor MMDiT::all_vectors(const Stacks& stacks, const at::Tensor& c,
                              const at::Tensor& last) const {
  if (!stacks.parallel) {
    return stack_vectors(*stacks.joint, c, last);
  }
  return at::cat({stack_vectors(*stacks.joint, c, last.narrow(1, 0, 0)),
                  stack_vectors(*stacks.parallel, c, last)},
                 1);
}

diffusion::Prepared MMDiT::prepare(const at::Tensor& times,
                                   const diffusion::Conditions& conditions) {
  (void)BlockModel::prepare(times, conditions);
  const at::Tensor captions = captions_of(config(), conditions);
  if (pipeline() != nullptr || !captions.defined() ||
      (y_embedder && !conditions.pooled.defined())) {
    return {};  // forward says what is missing
  }
  diffusion::Prepared prepared;
  prepared.of_texts = prepared_states(config(), text_encoder, null_text, conditions);
  if (!is_fast_with_heads()) {
    return prepared;
  }
  const int64_t batch = captions.size(0);
  diffusion::Conditions repeated;
  for (const auto tensor :
       {&diffusion::Conditions::pooled, &diffusion::Conditions::null_text,
        &diffusion::Conditions::null_pooled, &diffusion::Conditions::frame_mask}) {
    if ((conditions.*tensor).defined()) {
      repeated.*tensor =
          at::cat(std::vector(static_cast<size_t>(times.size(0)), conditions.*tensor));
    }
  }
  const Stacks all = stacks(FastJoint({.sequence = &sequence()}, nullptr), {});
  const int64_t columns = vector_columns(*all.joint) +
                          (all.parallel ? vector_columns(*all.parallel) : 0) +
                          2 * config().transformer.hidden;
  const int64_t first = has_first(conditions) ? 1 : 0;
  if (times.size(0) * batch * (1 + first) * columns * static_cast<int64_t>(sizeof(float)) >
      diffusion::Prepared::kMaxBytes) {
    return prepared;
  }
  const at::Tensor c = condition(times.repeat_interleave(batch), repeated);
  prepared.of_times =
      all_vectors(all, c, final_vectors(c, first)).view({times.size(0), -1, columns});
  return prepared;
}

at::Tensor MMDiT::compute(const at::Tensor& x_t, const at::Tensor& t,
                          const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_caption_inputs(config(), x_t, t, conditions);
  const Grid grid = grid_of(config(), x_t);
  const at::Tensor text =
      caption_states(config(), text_encoder, null_text, conditions, pass.prepared);
  const at::Tensor lengths = read_lengths(config(), conditions);
  const int64_t drawn = grid.frames * grid.tokens_a_frame();
  const Grid shown = shown_grid(conditions, x_t.size(0));
  const int64_t beside = shown.frames * shown.tokens_a_frame();
  const SlidingWindow* const window =
      sliding_windows_.any() ? &sliding_windows_.of(grid, beside + text.size(1), x_t.device())
                             : nullptr;
  Tensors streams = {embed_image(x_t, conditions, window), embed_text(text, lengths, t)};
  const std::shared_ptr<const nn::Sequence> own = sequence_of(pass);
  JointTokens tokens{.sequence = own.get(),
                     .image = drawn + beside,
                     .text = text.size(1),
                     .own_image = streams[0].size(2),
                     .own_text = streams[1].size(2),
                     .first = has_first(conditions) ? grid.tokens_a_frame() : 0,
                     .text_lengths = lengths};
  if (!has_table(config().transformer)) {
    // Text is at position 0 of every axis.
    tokens.image_angles =
        ready_angles(tokens, window, angles(grid, shown, x_t.device()).unsqueeze(0));
  }
  if (window != nullptr) {
    tokens.blocks = window->blocks();
    if (!config().transformer.second_attention.empty()) {
      tokens.image_blocks = sliding_windows_.of(grid, beside, x_t.device()).blocks();
    }
  }
  at::Tensor patches;
  if (is_fast_with_heads()) {
    tokens.kernels = &fast_pass({}, 0).kernels;
    patches = fast_blocks(
        streams, pass.prepared.of_times.defined() ? at::Tensor() : condition(t, conditions), tokens,
        pass);
  } else {
    patches = plain_blocks(streams, condition(t, conditions), tokens, pass);
  }
  if (!patches.defined()) {
    return {};
  }
  patches = all_tokens(sequence(), window, patches, tokens.image)
                .narrow(2, 0, drawn)
                .view({x_t.size(0), grid.frames, grid.tokens_a_frame(), -1});
  if (!has_table(config().transformer)) {  // Flux' line has a patch's channels outermost, on both
    patches = channels_fastest(config(), patches);  // sides
  }
  return tapped(from_patches(config(), patches, x_t));
}

}  // namespace kinora::models
