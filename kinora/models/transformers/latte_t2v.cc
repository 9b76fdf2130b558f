#include "kinora/models/transformers/latte_t2v.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <utility>

#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden.

namespace kinora::models {

TimeBlock::TimeBlock(const TransformerConfig& config)
    : attn({.hidden = config.hidden,
            .heads = config.heads,
            .qk_norm = config.qk_norm == ops::Switch::kOn}),
      mlp(config.hidden, config.mlp_hidden(), config.hidden),
      scale_shift_table(random_table(6, config.hidden)) {
  add_child("attn", attn);
  add_child("mlp", mlp);
  add_parameter("scale_shift_table", scale_shift_table);
}

at::Tensor TimeBlock::forward(const at::Tensor& x, const BlockConditions& conditions,
                              const nn::Sequence& sequence, int64_t tokens_a_frame) const {
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor h = modulated_norm(x, m[0], m[1]);
  const at::Tensor y =
      gated_sum(x, m[2], sequence.self_attention(attn, h, nn::Span::kTime, tokens_a_frame));
  return tapped(gated_sum(y, m[5], sequence.mlp(mlp, modulated_norm(y, m[3], m[4]))));
}

ops::Block TimeBlock::fast(const FastPass& pass) const {
  return {
      .branches = {attention_branch(pass, attn, nn::Span::kTime, CaptionBlock::kAttentionVectors),
                   mlp_branch(pass, mlp, CaptionBlock::kMlpVectors)},
      .num_vectors = 6};
}

at::Tensor TimeBlock::table() const {
  return ops::with_gradient(scale_shift_table.value, scale_shift_table.grad);
}

std::vector<nn::Linear*> TimeBlock::linears() {
  return {&attn.qkv, &attn.proj, &mlp.fc1, &mlp.fc2};
}

LatteT2V::LatteT2V(const ModelConfig& config)
    : CaptionModel(config),
      spatial_blocks(config.transformer),
      temporal_blocks(config.transformer) {
  pos_embed = stretched_positions(config, grid_of(config), at::kCPU).squeeze(1);
  pos_embed_temporal =
      sin_cos_positions(at::arange(grid_of(config).frames, at::kDouble), config.transformer.hidden)
          .unsqueeze(0);
  add_buffer("pos_embed", pos_embed);
  add_buffer("pos_embed_temporal", pos_embed_temporal);
  add_child("spatial_blocks", spatial_blocks);
  add_child("temporal_blocks", temporal_blocks);
  const int64_t depth = config.transformer.depth;
  set_block_buckets(in_turn(numbered("spatial_blocks", depth), numbered("temporal_blocks", depth)),
                    in_turn(linears_of(spatial_blocks, depth), linears_of(temporal_blocks, depth)),
                    readers_of(spatial_blocks, depth));
}

double LatteT2V::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(2 * m.mlp + m.cross_attention + m.attention(m.places) + m.attention(m.frames)) +
         m.modulation + m.captions;
}

CaptionModel::TimeVectors LatteT2V::time_vectors(const at::Tensor& t,
                                                 const diffusion::Conditions& conditions) const {
  const FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  return {condition, modulation_vectors(t_block, condition)};
}

at::Tensor LatteT2V::table(int64_t use) const {
  return use % 2 == 0 ? spatial_blocks[use / 2].table() : temporal_blocks[use / 2].table();
}

at::Tensor LatteT2V::compute(const at::Tensor& x_t, const at::Tensor& t,
                             const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  check_size(x_t);
  const Grid grid = grid_of(config(), x_t);
  // A single frame has no place in time.
  at::Tensor time;
  if (grid.frames > 1) {
    time = pos_embed_temporal.unsqueeze(2);  // [1, T, 1, C]
  }
  const at::Tensor x = embed(x_t, pos_embed.unsqueeze(1));  // [B, T, S', C]
  const int64_t tokens = grid.tokens_a_frame();
  if (is_fast()) {
    const FastPass fast = fast_pass(x, tokens, pass);
    std::vector<ops::Block> stacked;
    for (const int64_t use : blocks_of(pass)) {
      if (use % 2 == 0) {
        const CaptionBlock& in_space = spatial_blocks[use / 2];
        stacked.push_back(
            in_space.fast(fast, attention_branch(fast, in_space.self_attention(), nn::Span::kFrame,
                                                 CaptionBlock::kAttentionVectors)));
        continue;
      }
      stacked.push_back(temporal_blocks[use / 2].fast(fast));
      if (use == 1 && time.defined()) {
        stacked.back().offset = fast.offset(time);
      }
    }
    return run_fast(std::move(stacked), x, x_t, t, conditions, pass);
  }
  const TimeVectors of_time = time_vectors(t, conditions);
  const BlockConditions inputs = block_conditions(of_time.vectors, conditions);
  const std::shared_ptr<const nn::Sequence> own = sequence_of(pass);
  const CaptionBlock::Attend attend = [&own = *own, tokens](const nn::SelfAttention& attention,
                                                            const at::Tensor& frames) {
    return own.self_attention(attention, frames, nn::Span::kFrame, tokens);
  };
  const auto in_space = [&](int64_t i, const at::Tensor& clip) {
    return run_plain(2 * i, i < recompute_blocks(), clip, inputs,
                     [&own = *own, &block = spatial_blocks[i], attend](
                         const at::Tensor& in, const BlockConditions& given) {
                       return block.forward(in, given, own, attend);
                     });
  };
  const auto in_time = [&](int64_t i, const at::Tensor& clip) {
    return run_plain(2 * i + 1, i < recompute_blocks(),
                     i == 0 && time.defined() ? clip + time : clip, inputs,
                     [&own = *own, &block = temporal_blocks[i], tokens](
                         const at::Tensor& in, const BlockConditions& given) {
                       return block.forward(in, given, own, tokens);
                     });
  };
  const at::Tensor out = through_plain_blocks(
      x, 2 * config().transformer.depth, pass,
      [&](int64_t use, const at::Tensor& clip) {
        return use % 2 == 0 ? in_space(use / 2, clip) : in_time(use / 2, clip);
      },
      [&] { return spatial_blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
