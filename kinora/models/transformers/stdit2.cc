#include "kinora/models/transformers/stdit2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden, D dims of a head.

namespace kinora::models {
namespace {

constexpr int64_t kBlockVectors = 6;     // of t_block
constexpr int64_t kTemporalVectors = 3;  // of t_block_temp

}  // namespace

STDiT2Block::STDiT2Block(const TransformerConfig& config)
    : CaptionBlock(config),
      attn_temp({.hidden = config.hidden,
                 .heads = config.heads,
                 .qk_norm = config.qk_norm == ops::Switch::kOn,
                 .norm_after_rotary = true,
                 .zero_output = true}),
      scale_shift_table_temporal(random_table(kTemporalVectors, config.hidden)) {
  add_child("attn_temp", attn_temp);
  add_parameter("scale_shift_table_temporal", scale_shift_table_temporal);
}

at::Tensor STDiT2Block::forward(const at::Tensor& x, const BlockConditions& conditions,
                                const nn::Sequence& sequence, int64_t tokens_a_frame,
                                const at::Tensor& rotary) const {
  const std::vector<at::Tensor> m =
      modulation_of(scale_shift_table, conditions.vectors.narrow(2, 0, kBlockVectors));
  const std::vector<at::Tensor> time = modulation_of(
      scale_shift_table_temporal, conditions.vectors.narrow(2, kBlockVectors, kTemporalVectors));
  const at::Tensor& gate_msa = m[2];
  const at::Tensor& gate_time = time[2];
  const at::Tensor h = modulated_norm(x, m[0], m[1]);
  const at::Tensor mid =
      gated_sum(x, gate_msa, sequence.self_attention(attn, h, nn::Span::kFrame, tokens_a_frame));
  const at::Tensor h_time = modulated_norm(mid, time[0], time[1]);
  const at::Tensor y = gated_sum(
      mid, gate_time,
      sequence.self_attention(attn_temp, h_time, nn::Span::kTime, tokens_a_frame, rotary));
  return tapped(text_and_mlp(y, conditions, sequence, m));
}

ops::Block STDiT2Block::fast(const FastPass& pass, const at::Tensor& rotary) const {
  ops::Block block =
      CaptionBlock::fast(pass, attention_branch(pass, attn, nn::Span::kFrame, kAttentionVectors));
  block.branches.insert(block.branches.begin() + 1,
                        attention_branch(pass, attn_temp, nn::Span::kTime,
                                         {.shift = 6, .scale = 7, .gate = 8}, rotary));
  block.num_vectors = kBlockVectors + kTemporalVectors;
  return block;
}

at::Tensor STDiT2Block::table() const {
  return at::cat({CaptionBlock::table(), ops::with_gradient(scale_shift_table_temporal.value,
                                                            scale_shift_table_temporal.grad)});
}

std::vector<nn::Linear*> STDiT2Block::linears() {
  std::vector<nn::Linear*> linears = CaptionBlock::linears();
  linears.insert(linears.begin() + 2, {&attn_temp.qkv, &attn_temp.proj});
  return linears;
}

STDiT2::STDiT2(const ModelConfig& config)
    : CaptionModel(config),
      t_block_temp(config.transformer.hidden, kTemporalVectors, true),
      rope(config.transformer.hidden / config.transformer.heads),
      blocks(config.transformer),
      csize_embedder(config.transformer.hidden / kSizeParts),
      ar_embedder(config.transformer.hidden / kSizeParts),
      fl_embedder(config.transformer.hidden),
      fps_embedder(config.transformer.hidden) {
  add_child("t_block_temp", t_block_temp);
  add_child("rope", rope);
  add_child("blocks", blocks);
  add_child("csize_embedder", csize_embedder);
  add_child("ar_embedder", ar_embedder);
  add_child("fl_embedder", fl_embedder);
  add_child("fps_embedder", fps_embedder);
  set_init(*this, {"t_block_temp.1.weight"}, nn::Init::normal(0.02));
  set_init(*this, {"cross_attn.proj.weight"}, nn::Init::zero());
  set_block_buckets(numbered("blocks", config.transformer.depth),
                    linears_of(blocks, config.transformer.depth),
                    readers_of(blocks, config.transformer.depth));
}

void STDiT2::resolve(ModelConfig& config, const ModelConfig& published) {
  resolve_transformer(config, published);
  const TransformerConfig& own = config.transformer;
  KINORA_CHECK(own.hidden % kSizeParts == 0 && own.hidden / own.heads % 2 == 0, kConfig,
               "[stdit2] model.hidden must be a multiple of ", kSizeParts,
               " and an even one of model.heads, got ", own.hidden, " and ", own.heads);
}

double STDiT2::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.mlp + m.attention(m.places) + m.attention(m.frames) + m.cross_attention) +
         m.modulation + m.captions + 3 * m.hidden * m.hidden;
}

CaptionModel::TimeVectors STDiT2::time_vectors(const at::Tensor& t,
                                               const diffusion::Conditions& conditions) const {
  const at::Tensor& height = required(conditions.height, "height", t);
  const at::Tensor& width = required(conditions.width, "width", t);
  const at::Tensor sizes = at::cat(
      {csize_embedder.forward(at::stack({height, width}, 1)), ar_embedder.forward(height / width)},
      1);
  const at::Tensor times = fl_embedder.forward(required(conditions.num_frames, "num_frames", t)) +
                           fps_embedder.forward(required(conditions.fps, "fps", t));
  const FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  return {condition, at::cat({modulation_vectors(t_block, condition.plus(sizes)),
                              modulation_vectors(t_block_temp, condition.plus(times))},
                             2)};
}

at::Tensor STDiT2::table(int64_t use) const {
  return blocks[use].table();
}

at::Tensor STDiT2::compute(const at::Tensor& x_t, const at::Tensor& t,
                           const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const Grid grid = grid_of(config(), x_t);
  const at::Tensor scale = picture_scale(config(), conditions);
  const at::Tensor rotary =
      rotary_angles(rope.freqs, at::arange(grid.frames, scale.options())).unsqueeze(1);
  const at::Tensor x = embed(x_t, scaled_positions(config(), grid, scale));  // [B, T, S', C]
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame(), pass);
    std::vector<ops::Block> stacked;
    for (const int64_t i : blocks_of(pass)) {
      stacked.push_back(blocks[i].fast(fast, rotary));
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
                         [&own = *own, &block = blocks[i], tokens = grid.tokens_a_frame(), rotary](
                             const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, own, tokens, rotary);
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
