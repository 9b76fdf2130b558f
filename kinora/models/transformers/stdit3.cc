#include "kinora/models/transformers/stdit3.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/transformers/transformer_family.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden, D dims of a head.

namespace kinora::models {
namespace {

/// Axes along which a head's dims turn.
int64_t rotary_axes(const TransformerConfig& config) {
  return config.rotary_3d ? 3 : 1;
}

}  // namespace

STDiT3::STDiT3(const ModelConfig& config)
    : CaptionModel(config),
      fps_embedder(config.transformer.hidden),
      rope(config.transformer.hidden / config.transformer.heads / rotary_axes(config.transformer)),
      spatial_blocks(config.transformer),
      temporal_blocks(config.transformer) {
  add_child("fps_embedder", fps_embedder);
  add_child("rope", rope);
  if (config.transformer.given_embedders) {
    x_embedder_cond.emplace(config, 3);
    x_embedder_cond_mask.emplace(config, 3);
    add_child("x_embedder_cond", *x_embedder_cond);
    add_child("x_embedder_cond_mask", *x_embedder_cond_mask);
    set_init(*this, {"x_embedder_cond.proj.weight", "x_embedder_cond_mask.proj.weight"},
             nn::Init::zero());
  }
  add_child("spatial_blocks", spatial_blocks);
  add_child("temporal_blocks", temporal_blocks);
  set_init(*this, {"fps_embedder.mlp.2.weight", "final_layer.linear.weight"}, nn::Init::zero());
  // At first a model of single frames.
  set_init(temporal_blocks, {"attn.proj.weight", "mlp.fc2.weight"}, nn::Init::zero());
  const int64_t depth = config.transformer.depth;
  set_block_buckets(in_turn(numbered("spatial_blocks", depth), numbered("temporal_blocks", depth)),
                    in_turn(linears_of(spatial_blocks, depth), linears_of(temporal_blocks, depth)),
                    in_turn(readers_of(spatial_blocks, depth), readers_of(temporal_blocks, depth)));
}

void STDiT3::resolve(ModelConfig& config, const ModelConfig& published) {
  resolve_transformer(config, published);
  const TransformerConfig& own = config.transformer;
  KINORA_CHECK(own.window.empty() || own.window.size() == 3, kConfig,
               "[model] model.window must be [] or frames, rows and columns, got ",
               own.window.size(), " numbers");
  KINORA_CHECK(own.window.empty() != own.rotary_3d, kConfig,
               "[stdit3] model.window and model.rotary_3d are given both or neither");
  const int64_t head = own.hidden / own.heads;
  const int64_t parts = 2 * rotary_axes(own);
  KINORA_CHECK(head % parts == 0, kConfig,
               "[stdit3] model.hidden / model.heads must be a multiple of ", parts,
               " for its rotary embedding, got ", head);
}

double STDiT3::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(2 * (m.mlp + m.cross_attention) + m.attention(m.places) + m.attention(m.frames)) +
         m.modulation + m.captions;
}

CaptionModel::TimeVectors STDiT3::time_vectors(const at::Tensor& t,
                                               const diffusion::Conditions& conditions) const {
  const FrameCondition condition =
      embed_time(t_embedder, t, embeds_given(conditions) ? at::Tensor() : conditions.frame_mask)
          .plus(fps_embedder.forward(required(conditions.fps, "fps", t)));
  return {condition, modulation_vectors(t_block, condition)};
}

at::Tensor STDiT3::table(int64_t use) const {
  return use % 2 == 0 ? spatial_blocks[use / 2].table() : temporal_blocks[use / 2].table();
}

at::Tensor STDiT3::compute(const at::Tensor& x_t, const at::Tensor& t,
                           const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const Grid grid = grid_of(config(), x_t);
  const at::Tensor scale = picture_scale(config(), conditions);
  at::Tensor x = embed(x_t, scaled_positions(config(), grid, scale));  // [B, T, S', C]
  if (embeds_given(conditions)) {
    x = x + embed_given(conditions);
  }
  const Angles angles = angles_of(grid, scale);
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame(), pass);
    std::vector<ops::Block> stacked;
    for (const int64_t use : blocks_of(pass)) {
      constexpr ops::SeamNumbers kVectors = CaptionBlock::kAttentionVectors;
      if (use % 2 == 0) {
        const CaptionBlock& in_space = spatial_blocks[use / 2];
        stacked.push_back(
            in_space.fast(fast, attention_branch(fast, in_space.self_attention(), nn::Span::kFrame,
                                                 kVectors, angles.space)));
        continue;
      }
      const CaptionBlock& in_time = temporal_blocks[use / 2];
      stacked.push_back(
          in_time.fast(fast, config().transformer.window.empty()
                                 ? attention_branch(fast, in_time.self_attention(), nn::Span::kTime,
                                                    kVectors, angles.time)
                                 : window_branch(fast, in_time.self_attention(), windows_of(grid),
                                                 kVectors, angles.time)));
    }
    return run_fast(std::move(stacked), x, x_t, t, conditions, pass);
  }
  const TimeVectors of_time = time_vectors(t, conditions);
  BlockConditions inputs = block_conditions(of_time.vectors, conditions);
  if (embeds_given(conditions)) {
    inputs = with_null_text(std::move(inputs), conditions);
  }
  const std::shared_ptr<const nn::Sequence> own = sequence_of(pass);
  const CaptionBlock::Attend in_space = attend_space(*own, grid, angles.space);
  const CaptionBlock::Attend in_time = attend_time(*own, grid, angles.time);
  const at::Tensor out = through_plain_blocks(
      x, 2 * config().transformer.depth, pass,
      [&](int64_t use, const at::Tensor& clip) {
        const bool is_in_space = use % 2 == 0;
        return run_plain(
            use, use / 2 < recompute_blocks(), clip, inputs,
            [&own = *own, &block = (is_in_space ? spatial_blocks : temporal_blocks)[use / 2],
             attend = is_in_space ? in_space : in_time](const at::Tensor& in,
                                                        const BlockConditions& given) {
              return block.forward(in, given, own, attend);
            });
      },
      [&] { return spatial_blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

bool STDiT3::embeds_given(const diffusion::Conditions& conditions) const {
  return config().transformer.given_embedders && conditions.frame_mask.defined();
}

at::Tensor STDiT3::embed_given(const diffusion::Conditions& conditions) const {
  const at::Tensor& given = conditions.given;
  KINORA_CHECK(given.defined(), kShape,
               "[stdit3] with model.given_embedders a frame mask needs the given frames");
  const at::Tensor is_given = conditions.frame_mask.logical_not()
                                  .view({given.size(0), 1, -1, 1, 1})
                                  .to(given.scalar_type())
                                  .expand_as(given);
  const auto patches = [&](const at::Tensor& values) {
    return sequence().enter(to_patches(config(), values));
  };
  return x_embedder_cond->forward(patches(given * is_given)) +
         x_embedder_cond_mask->forward(patches(is_given));
}

at::Tensor STDiT3::embed_null_text(const diffusion::Conditions& conditions) const {
  diffusion::Conditions null = conditions;
  null.null_text = at::ones({conditions.frame_mask.size(0)}, conditions.frame_mask.options());
  return embed_text(null);
}

BlockConditions STDiT3::with_null_text(BlockConditions inputs,
                                       const diffusion::Conditions& conditions) const {
  inputs.null_text = embed_null_text(conditions);
  inputs.reads_text = conditions.frame_mask.unsqueeze(2).unsqueeze(3);
  return inputs;
}

at::Tensor STDiT3::fast_texts(const diffusion::Conditions& conditions) const {
  if (!embeds_given(conditions)) {
    return CaptionModel::fast_texts(conditions);
  }
  return at::where(conditions.frame_mask.unsqueeze(2).unsqueeze(3),
                   embed_text(conditions).unsqueeze(1), embed_null_text(conditions).unsqueeze(1))
      .flatten(0, 1);  // [B T, L, C]
}

at::Tensor STDiT3::fast_text_lengths(const diffusion::Conditions& conditions) const {
  const at::Tensor lengths = CaptionModel::fast_text_lengths(conditions);
  return embeds_given(conditions) ? lengths.repeat_interleave(conditions.frame_mask.size(1))
                                  : lengths;
}

at::Tensor STDiT3::angles_3d(int64_t frames, int64_t rows, int64_t columns,
                             const at::Tensor& scale) const {
  const auto axis = [&](int64_t count) { return at::arange(count, scale.options()); };
  const int64_t dims = 2 * rope.freqs.size(0);
  const std::vector<int64_t> shape = {frames, rows, columns, dims};
  // A larger picture has finer rows and columns.
  return at::cat({rotary_angles(rope.freqs, axis(frames)).view({-1, 1, 1, dims}).expand(shape),
                  rotary_angles(rope.freqs, axis(rows) / scale).view({-1, 1, dims}).expand(shape),
                  rotary_angles(rope.freqs, axis(columns) / scale).expand(shape)},
                 -1)
      .flatten(1, 2);
}

nn::Windows STDiT3::windows_of(const Grid& grid) const {
  return {.rows = grid.rows,
          .columns = grid.columns,
          .window_frames = std::min(config().transformer.window[0], grid.frames),
          .window_rows = std::min(config().transformer.window[1], grid.rows),
          .window_columns = std::min(config().transformer.window[2], grid.columns)};
}

STDiT3::Angles STDiT3::angles_of(const Grid& grid, const at::Tensor& scale) const {
  Angles angles;
  if (config().transformer.rotary_3d) {
    angles.space = angles_3d(1, grid.rows, grid.columns, scale).expand({grid.frames, -1, -1});
  }
  if (config().transformer.window.empty()) {
    angles.time = rotary_angles(rope.freqs, at::arange(grid.frames, scale.options())).unsqueeze(1);
  } else {
    const nn::Windows windows = windows_of(grid);
    angles.time =
        angles_3d(windows.window_frames, windows.window_rows, windows.window_columns, scale)
            .flatten(0, 1);
  }
  return angles;
}

CaptionBlock::Attend STDiT3::attend_space(const nn::Sequence& sequence, const Grid& grid,
                                          const at::Tensor& angles) const {
  return [&sequence, angles, tokens = grid.tokens_a_frame()](const nn::SelfAttention& attention,
                                                             const at::Tensor& x) {
    return sequence.self_attention(attention, x, nn::Span::kFrame, tokens, angles);
  };
}

CaptionBlock::Attend STDiT3::attend_time(const nn::Sequence& sequence, const Grid& grid,
                                         const at::Tensor& angles) const {
  if (config().transformer.window.empty()) {
    return [&sequence, angles, tokens = grid.tokens_a_frame()](const nn::SelfAttention& attention,
                                                               const at::Tensor& x) {
      return sequence.self_attention(attention, x, nn::Span::kTime, tokens, angles);
    };
  }
  return [&sequence, angles, windows = windows_of(grid)](const nn::SelfAttention& attention,
                                                         const at::Tensor& x) {
    return sequence.window_attention(attention, x, windows, angles);
  };
}

}  // namespace kinora::models
