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

PixArtBlock::PixArtBlock(const TransformerConfig& config, int64_t number) : CaptionBlock(config) {
  if (compresses_kv(config, number)) {
    kv_compression_.emplace(config.hidden, config.kv_compress, config.kv_compress_factor);
    add_child("attn", *kv_compression_);
  }
}

CaptionBlock::Attend PixArtBlock::attend(const nn::Sequence& sequence, const Grid& grid) const {
  if (!kv_compression_) {
    return [&sequence, tokens = grid.tokens_a_frame()](const nn::SelfAttention& attention,
                                                       const at::Tensor& image) {
      return sequence.self_attention(attention, image, nn::Span::kFrame, tokens);
    };
  }
  return [this, &sequence, grid](const nn::SelfAttention& attention, const at::Tensor& image) {
    return sequence.branch(ops::BranchKind::kSpace, [&] {
      return std::vector{
          kv_compression_->attend(attention, image.flatten(0, 1), grid.rows, grid.columns)
              .view_as(image)};
    })[0];
  };
}

ops::Block PixArtBlock::fast(const FastPass& pass, const Grid& grid) const {
  if (!kv_compression_) {
    return CaptionBlock::fast(
        pass, attention_branch(pass, self_attention(), nn::Span::kFrame, kAttentionVectors));
  }
  std::vector<at::Tensor> gradients = gradients_of(self_attention());
  const std::vector<at::Tensor> own = kv_compression_->gradients();
  gradients.insert(gradients.end(), own.begin(), own.end());
  return CaptionBlock::fast(
      pass, token_branch(
                pass,
                [this, attend = attend(pass.sequence, grid)](const at::Tensor& image) {
                  return attend(self_attention(), image);
                },
                std::move(gradients), kAttentionVectors));
}

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
                    linears_of(blocks, config.transformer.depth),
                    readers_of(blocks, config.transformer.depth));
}

void PixArt::resolve(ModelConfig& config, const ModelConfig& published) {
  resolve_transformer(config, published);
  const TransformerConfig& own = config.transformer;
  KINORA_CHECK(!own.size_conditions || own.hidden % kSizeParts == 0, kConfig,
               "[pixart] model.hidden must be a multiple of ", kSizeParts,
               " for model.size_conditions, got ", own.hidden);
  const bool compresses = own.kv_compress != KvSampling::kNone;
  KINORA_CHECK(
      compresses || own.kv_compress_layers.empty(), kConfig,
      "[pixart] model.kv_compress_layers needs model.kv_compress, got none. Hint: conv, as "
      "published for 2K");
  for (const int64_t layer : own.kv_compress_layers) {
    KINORA_CHECK(layer < own.depth, kConfig,
                 "[pixart] model.kv_compress_layers must be blocks from 0 to ", own.depth - 1,
                 ", got ", layer);
  }
  const Grid grid = grid_of(config);
  KINORA_CHECK(!compresses || KvCompression::tokens_left(own, grid.rows, grid.columns) > 0, kConfig,
               "[pixart] model.kv_compress_factor must leave keys of ", grid.rows, " x ",
               grid.columns, " tokens, got ", own.kv_compress_factor);
}

double PixArt::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  const TransformerConfig& own = config.transformer;
  const Grid grid = grid_of(config);
  double fewer_keys = 0.0;  // of all blocks
  for (int64_t block = 0; block < own.depth; ++block) {
    if (compresses_kv(own, block)) {
      fewer_keys +=
          m.tokens - static_cast<double>(KvCompression::tokens_left(own, grid.rows, grid.columns));
    }
  }
  return m.model(m.mlp + m.attention(m.tokens) + m.cross_attention) + m.modulation + m.captions -
         2 * m.tokens * fewer_keys * m.hidden;
}

CaptionModel::TimeVectors PixArt::time_vectors(const at::Tensor& t,
                                               const diffusion::Conditions& conditions) const {
  FrameCondition condition = embed_time(t_embedder, t, conditions.frame_mask);
  if (csize_embedder.has_value()) {
    const at::Tensor& height = required(conditions.height, "height", t);
    const at::Tensor& width = required(conditions.width, "width", t);
    condition = condition.plus(at::cat({csize_embedder->forward(at::stack({height, width}, 1)),
                                        ar_embedder->forward(height / width)},
                                       1));
  }
  return {condition, modulation_vectors(t_block, condition)};
}

at::Tensor PixArt::table(int64_t use) const {
  return blocks[use].table();
}

at::Tensor PixArt::compute(const at::Tensor& x_t, const at::Tensor& t,
                           const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const Grid grid = grid_of(config(), x_t);
  KINORA_CHECK(grid.frames == 1, kShape, "[pixart] x_t must be images, got ", x_t.sizes());

  const Grid own = grid_of(config());
  const bool has_own_size = grid.rows == own.rows && grid.columns == own.columns;
  const at::Tensor x = embed(
      x_t, has_own_size ? pos_embed.unsqueeze(1)
                        : stretched_positions(config(), grid, x_t.device()));  // [B, 1, S', C]
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame(), pass);
    std::vector<ops::Block> stacked;
    for (const int64_t i : blocks_of(pass)) {
      stacked.push_back(blocks[i].fast(fast, grid));
    }
    return run_fast(std::move(stacked), x, x_t, t, conditions, pass);
  }
  const TimeVectors of_time = time_vectors(t, conditions);
  const BlockConditions inputs = block_conditions(of_time.vectors, conditions);
  const std::shared_ptr<const nn::Sequence> tokens = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, config().transformer.depth, pass,
      [&](int64_t i, const at::Tensor& image) {
        return run_plain(i, i < recompute_blocks(), image, inputs,
                         [&tokens = *tokens, &block = blocks[i], grid](
                             const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, tokens, block.attend(tokens, grid));
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
