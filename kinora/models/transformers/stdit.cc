#include "kinora/models/transformers/stdit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden.

namespace kinora::models {
namespace {

/// A block's vectors along `dim`, behind which stands the gate of attention again: that through
/// time has the same.
at::Tensor with_gate_again(const at::Tensor& vectors, int64_t dim) {
  return at::cat({vectors, vectors.narrow(dim, CaptionBlock::kAttentionVectors.gate, 1)}, dim);
}

}  // namespace

STDiTBlock::STDiTBlock(const TransformerConfig& config)
    : CaptionBlock(config),
      attn_temp({.hidden = config.hidden,
                 .heads = config.heads,
                 .qk_norm = config.qk_norm == ops::Switch::kOn,
                 .zero_output = true}) {
  add_child("attn_temp", attn_temp);
}

at::Tensor STDiTBlock::forward(const at::Tensor& x, const BlockConditions& conditions,
                               const nn::Sequence& sequence, int64_t tokens_a_frame,
                               const at::Tensor& time_positions) const {
  const std::vector<at::Tensor> m =
      modulation_of(scale_shift_table, conditions.vectors.narrow(2, 0, kNumVectors));
  const at::Tensor& gate_msa = m[2];
  const at::Tensor h = modulated_norm(x, m[0], m[1]);
  at::Tensor y =
      gated_sum(x, gate_msa, sequence.self_attention(attn, h, nn::Span::kFrame, tokens_a_frame));
  const at::Tensor in_time = time_positions.defined() ? y + time_positions : y;
  y = gated_sum(y, gate_msa,
                sequence.self_attention(attn_temp, in_time, nn::Span::kTime, tokens_a_frame));
  return tapped(text_and_mlp(y, conditions, sequence, m));
}

ops::Block STDiTBlock::fast(const FastPass& pass, const at::Tensor& time_positions) const {
  ops::Block block =
      CaptionBlock::fast(pass, attention_branch(pass, attn, nn::Span::kFrame, kAttentionVectors));
  ops::Branch in_time = attention_branch(pass, attn_temp, nn::Span::kTime, {.gate = 6});
  if (time_positions.defined()) {
    in_time.offset = pass.offset(time_positions);
  }
  block.branches.insert(block.branches.begin() + 1, std::move(in_time));
  block.num_vectors = 7;
  return block;
}

at::Tensor STDiTBlock::table() const {
  return with_gate_again(CaptionBlock::table(), 0);
}

std::vector<nn::Linear*> STDiTBlock::linears() {
  std::vector<nn::Linear*> linears = CaptionBlock::linears();
  linears.insert(linears.begin() + 2, {&attn_temp.qkv, &attn_temp.proj});
  return linears;
}

STDiT::STDiT(const ModelConfig& config) : CaptionModel(config), blocks(config.transformer) {
  const auto positions = [](int64_t count, double scale) {
    return at::arange(count, at::kDouble) / scale;
  };
  const TransformerConfig& own = config.transformer;
  const Grid grid = grid_of(config);
  pos_embed = frame_positions(positions(grid.rows, own.position_scale),
                              positions(grid.columns, own.position_scale), own.hidden)
                  .squeeze(0);
  pos_embed_temporal =
      sin_cos_positions(positions(grid.frames, own.time_position_scale), own.hidden).unsqueeze(0);
  add_buffer("pos_embed", pos_embed);
  add_buffer("pos_embed_temporal", pos_embed_temporal);
  add_child("blocks", blocks);
  set_init(*this, {"cross_attn.proj.weight"}, nn::Init::zero());
  set_block_buckets(numbered("blocks", own.depth), linears_of(blocks, own.depth),
                    readers_of(blocks, own.depth));
}

double STDiT::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.mlp + m.attention(m.places) + m.attention(m.frames) + m.cross_attention) +
         m.modulation + m.captions;
}

CaptionModel::TimeVectors STDiT::time_vectors(const at::Tensor& t,
                                              const diffusion::Conditions& conditions) const {
  const FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  return {condition, with_gate_again(modulation_vectors(t_block, condition), 2)};
}

at::Tensor STDiT::table(int64_t use) const {
  return blocks[use].table();
}

at::Tensor STDiT::compute(const at::Tensor& x_t, const at::Tensor& t,
                          const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  check_size(x_t);
  const Grid grid = grid_of(config(), x_t);
  const auto time = [&](int64_t block) {
    return block == 0 ? pos_embed_temporal.narrow(1, 0, grid.frames).unsqueeze(2) : at::Tensor();
  };
  const at::Tensor x = embed(x_t, pos_embed.unsqueeze(0));  // [B, T, S', C]
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame(), pass);
    std::vector<ops::Block> stacked;
    for (const int64_t i : blocks_of(pass)) {
      stacked.push_back(blocks[i].fast(fast, time(i)));
    }
    return run_fast(std::move(stacked), x, x_t, t, conditions, pass);
  }
  const TimeVectors of_time = time_vectors(t, conditions);
  const BlockConditions inputs = block_conditions(of_time.vectors, conditions);
  const std::shared_ptr<const nn::Sequence> own = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, config().transformer.depth, pass,
      [&](int64_t i, const at::Tensor& clip) {
        return run_plain(i, i < recompute_blocks(), clip, inputs,
                         [&own = *own, &block = blocks[i], tokens = grid.tokens_a_frame(),
                          positions = time(i)](const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, own, tokens, positions);
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
