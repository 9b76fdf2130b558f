#include "kinora/models/transformers/pixart.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/transformers/transformer_family.h"

// Shapes: B batch, S patches of an image, C hidden.

namespace kinora::models {

PixArt::PixArt(const ModelConfig& config)
    : CaptionModel(config),
      pos_embed(stretched_positions(config, grid_of(config), at::kCPU).squeeze(1)),
      blocks(config.transformer) {
  add_buffer("pos_embed", pos_embed);
  add_child("blocks", blocks);
  if (config.transformer.size_conditions) {
    csize_embedder.emplace(config.transformer.hidden / kSizeParts);
    ar_embedder.emplace(config.transformer.hidden / kSizeParts);
    add_child("csize_embedder", *csize_embedder);
    add_child("ar_embedder", *ar_embedder);
  }
  set_block_buckets(numbered("blocks", config.transformer.depth),
                    linears_of(blocks, config.transformer.depth));
}

void PixArt::resolve(ModelConfig& config, const ModelConfig& published) {
  resolve_transformer(config, published);
  const TransformerConfig& own = config.transformer;
  KINORA_CHECK(!own.size_conditions || own.hidden % kSizeParts == 0, kConfig,
               "[pixart] model.hidden must be a multiple of ", kSizeParts,
               " for model.size_conditions, got ", own.hidden);
}

double PixArt::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.mlp + m.attention(m.tokens) + m.cross_attention) + m.modulation + m.captions;
}

at::Tensor PixArt::predict(const at::Tensor& x_t, const at::Tensor& t,
                           const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const Grid grid = grid_of(config(), x_t);
  KINORA_CHECK(grid.frames == 1, kShape, "[pixart] x_t must be images, got ", x_t.sizes());

  FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  if (csize_embedder.has_value()) {
    const at::Tensor& height = required(conditions.height, "height", x_t);
    const at::Tensor& width = required(conditions.width, "width", x_t);
    condition = condition.plus(at::cat({csize_embedder->forward(at::stack({height, width}, 1)),
                                        ar_embedder->forward(height / width)},
                                       1));
  }
  const BlockConditions inputs =
      block_conditions(modulation_vectors(t_block, condition), conditions);
  const Grid own = grid_of(config());
  const bool has_own_size = grid.rows == own.rows && grid.columns == own.columns;
  at::Tensor x = embed(
      x_t, has_own_size ? pos_embed.unsqueeze(1)
                        : stretched_positions(config(), grid, x_t.device()));  // [B, 1, S', C]
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame());
    std::vector<ops::Block> stacked;
    std::vector<at::Tensor> tables;
    for (int64_t i = 0; i < config().transformer.depth; ++i) {
      stacked.push_back(
          blocks[i].fast(fast, attention_branch(fast, blocks[i].self_attention(), nn::Span::kFrame,
                                                CaptionBlock::kAttentionVectors)));
      tables.push_back(blocks[i].table());
    }
    return run_fast(std::move(stacked), tables, x, inputs, condition, x_t, pass);
  }
  const CaptionBlock::Attend attend = [this, tokens = grid.tokens_a_frame()](
                                          const nn::SelfAttention& attention,
                                          const at::Tensor& image) {
    return sequence().self_attention(attention, image, nn::Span::kFrame, tokens);
  };
  for (int64_t i = 0; i < config().transformer.depth; ++i) {
    x = run_plain(
        i, i < recompute_blocks(), x, inputs,
        [this, &block = blocks[i], attend](const at::Tensor& image, const BlockConditions& in) {
          return block.forward(image, in, sequence(), attend);
        });
  }
  return finish(x, condition, x_t);
}

}  // namespace kinora::models
