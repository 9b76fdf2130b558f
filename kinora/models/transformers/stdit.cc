#include "kinora/models/transformers/stdit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "kinora/models/transformers/transformer_config.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden.

namespace kinora::models {

STDiTBlock::STDiTBlock(const ModelConfig& config)
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
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor& gate_msa = m[2];
  const auto [in, h] = normed_sum(kernels(), x, {}, {}, m[0], m[1]);
  at::Tensor y = gated_sum(kernels(), in, gate_msa,
                           sequence.self_attention(attn, h, nn::Span::kFrame, tokens_a_frame));
  const at::Tensor in_time = time_positions.defined() ? y + time_positions : y;
  y = gated_sum(kernels(), y, gate_msa,
                sequence.self_attention(attn_temp, in_time, nn::Span::kTime, tokens_a_frame));
  return tapped(text_and_mlp(y, conditions, sequence, m));
}

STDiT::STDiT(const ModelConfig& config) : CaptionModel(config), blocks(config) {
  const auto positions = [](int64_t count, double scale) {
    return at::arange(count, at::kDouble) / scale;
  };
  pos_embed =
      frame_positions(positions(config.height / config.patch, config.position_scale),
                      positions(config.width / config.patch, config.position_scale), config.hidden)
          .squeeze(0);
  pos_embed_temporal =
      sin_cos_positions(positions(config.num_frames(), config.time_position_scale), config.hidden)
          .unsqueeze(0);
  add_buffer("pos_embed", pos_embed);
  add_buffer("pos_embed_temporal", pos_embed_temporal);
  add_child("blocks", blocks);
  set_init(*this, {"cross_attn.proj.weight"}, nn::Init::zero());
  set_block_buckets(numbered("blocks", config.depth));
}

double STDiT::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.mlp + m.attention(m.places) + m.attention(m.frames) + m.cross_attention) +
         m.modulation + m.captions;
}

at::Tensor STDiT::predict(const at::Tensor& x_t, const at::Tensor& t,
                          const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  check_size(x_t);
  const Grid grid = grid_of(config(), x_t);
  const FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  const BlockConditions inputs =
      block_conditions(modulation_vectors(t_block, condition), conditions);

  const ops::BucketHook hook = start(pass);
  at::Tensor x = embed(x_t, pos_embed.unsqueeze(0));  // [B, T, S', C]
  for (int64_t i = 0; i < config().depth; ++i) {
    const at::Tensor time =
        i == 0 ? pos_embed_temporal.narrow(1, 0, grid.frames).unsqueeze(2) : at::Tensor();
    x = run(hook, i, recomputes(i), x, inputs,
            [this, &block = blocks[i], tokens = grid.tokens_a_frame(), time](
                const at::Tensor& in, const BlockConditions& given) {
              return block.forward(in, given, sequence(), tokens, time);
            });
  }
  return finish(x, condition, x_t);
}

}  // namespace kinora::models
