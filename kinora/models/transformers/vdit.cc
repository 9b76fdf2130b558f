#include "kinora/models/transformers/vdit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/run_block.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden, D width of a caption's
// vector.

namespace kinora::models {
namespace {

/// For DiT's final layer: the frames of a patch count as channels there.
ModelConfig of_final_layer(ModelConfig config) {
  config.in_channels *= config.transformer.patch_frames;
  return config;
}

at::Tensor numbers(int64_t count) {
  return at::arange(count, at::kDouble);
}

}  // namespace

TextEmbedder::TextEmbedder(const ModelConfig& config)
    : output_projection(config.text_channels, config.transformer.hidden,
                        nn::Init::xavier_uniform(config.text_channels, config.transformer.hidden),
                        {.fp32_island = true}),
      y_embedding(at::zeros({1, config.text_channels}, at::kFloat)) {
  output_projection.set_cut(nn::Cut::of_whole_inputs(config.text_channels));
  add_child("output_projection", output_projection);
  add_buffer("y_embedding", y_embedding);
}

at::Tensor TextEmbedder::forward(const at::Tensor& pooled, const at::Tensor& null_text) const {
  const at::Tensor vectors =
      null_text.defined() ? at::where(null_text.unsqueeze(1), y_embedding, pooled) : pooled;
  return tapped(output_projection.forward(vectors));
}

VDiT::VDiT(const ModelConfig& config)
    : BlockModel(config),
      x_embedder(config, 3),
      t_embedder(config.transformer.hidden, config.time_scale),
      y_embedder(config),
      pos_embed_spatial(frame_positions(numbers(grid_of(config).rows),
                                        numbers(grid_of(config).columns), config.transformer.hidden)
                            .squeeze(1)),
      pos_embed_temporal(
          sin_cos_positions(numbers(grid_of(config).frames), config.transformer.hidden)
              .unsqueeze(0)),
      blocks(config.transformer),
      final_layer(of_final_layer(config)) {
  add_child("x_embedder", x_embedder);
  add_child("t_embedder", t_embedder);
  if (config.text_encoder.any()) {
    text_encoder.emplace(config);
    add_child("text_encoder", *text_encoder);
  }
  add_child("y_embedder", y_embedder);
  add_buffer("pos_embed_spatial", pos_embed_spatial);
  add_buffer("pos_embed_temporal", pos_embed_temporal);
  add_child("blocks", blocks);
  add_child("final_layer", final_layer);
  final_layer.set_layer(config.transformer.depth + 1);
  set_buckets(block_buckets(*this, numbered("blocks", config.transformer.depth)),
              linears_of(blocks, config.transformer.depth));
}

void VDiT::to_device(const at::Device& device) {
  BlockModel::to_device(device);
  if (text_encoder) {
    text_encoder->to_device(device);
  }
}

double VDiT::macs(const ModelConfig& config) {
  return DiT::macs(config);
}

void VDiT::check_inputs(const at::Tensor& x_t, const at::Tensor& t,
                        const diffusion::Conditions& conditions) const {
  const ModelConfig& c = config();
  const int64_t batch = x_t.size(0);
  const bool has_frames =
      x_t.dim() == 4 || (x_t.dim() == 5 && (x_t.size(2) == c.frames || x_t.size(2) == 1));
  KINORA_CHECK(has_frames && x_t.size(1) == c.in_channels && x_t.size(-2) == c.height &&
                   x_t.size(-1) == c.width,
               kShape, "[vdit] x_t must have shape [B, ", c.in_channels, ", ", c.frames, ", ",
               c.height, ", ", c.width, "] or be one such frame, got ", x_t.sizes());
  KINORA_CHECK(t.dim() == 1 && t.size(0) == batch && t.scalar_type() == at::kFloat, kShape,
               "[vdit] t must be float32 [", batch, "], got ", t.scalar_type(), " ", t.sizes());
  check_captions(batch, conditions);
  KINORA_CHECK(!conditions.frame_mask.defined(), kShape,
               "[vdit] frames cannot be given: the model has one time for a clip");
}

void VDiT::check_captions(int64_t batch, const diffusion::Conditions& conditions) const {
  if (text_encoder) {
    KINORA_CHECK(conditions.tokens.defined() && conditions.tokens.size(0) == batch &&
                     conditions.text_lengths.defined() && conditions.text_lengths.dim() == 1 &&
                     conditions.text_lengths.size(0) == batch,
                 kShape, "[vdit] ", config().name,
                 " has a text encoder and needs tokens and text_lengths, [", batch, ", L] and [",
                 batch, "]");
    return;
  }
  const at::Tensor& pooled = conditions.pooled;
  const int64_t width = config().text_channels;
  KINORA_CHECK(pooled.defined(), kShape, "[vdit] pooled captions must be given, [", batch, ", ",
               width, "]");
  KINORA_CHECK(pooled.dim() == 2 && pooled.size(0) == batch && pooled.size(1) == width, kShape,
               "[vdit] pooled must have shape [", batch, ", ", width, "], got ", pooled.sizes());
}

at::Tensor VDiT::compute(const at::Tensor& x_t, const at::Tensor& t,
                         const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const at::Tensor pooled =
      text_encoder ? text_encoder->pool_captions(conditions.tokens, conditions.text_lengths)
                   : conditions.pooled;
  const at::Tensor c =
      t_embedder.forward(t) + y_embedder.forward(pooled, conditions.null_text);  // [B, C]
  const int64_t tokens = grid_of(config()).tokens_a_frame();
  const at::Tensor x = x_embedder.forward(sequence().enter(to_patches(config(), x_t))) +
                       sequence().enter(pos_embed_spatial.unsqueeze(1));  // [B, T, S', C]
  const auto to_clip = [&](const at::Tensor& part) {
    return tapped(from_patches(config(), sequence().leave(part, tokens), x_t));
  };
  const at::Tensor time = pos_embed_temporal.narrow(1, 0, x.size(1)).unsqueeze(2);  // [1, T, 1, C]
  if (is_fast()) {
    const FastPass fast = fast_pass(x, tokens, pass);
    std::vector<ops::Block> stacked;
    std::vector<ops::LinearWeights> modulation;
    for (const int64_t i : blocks_of(pass)) {
      stacked.push_back(blocks[i].fast(fast, span_of(i)));
      modulation.push_back(blocks[i].modulation());
      if (i == first_block_in_time()) {
        stacked.back().offset = fast.offset(time);
      }
    }
    ops::BlockStack all = stack(std::move(stacked), pass);
    all.modulation = std::move(modulation);
    all.modulation_buckets.assign(all.modulation.size(), -1);
    const at::Tensor h =
        run(std::move(all), {.x = x, .condition = c, .vectors = final_layer.modulation(c)}, pass);
    return h.defined() ? to_clip(final_layer.project(h)) : at::Tensor();
  }
  const std::shared_ptr<const nn::Sequence> own = sequence_of(pass);
  const auto in_time = [&](int64_t i, const at::Tensor& in) {
    return i == first_block_in_time() ? in + time : in;
  };
  const at::Tensor out = through_plain_blocks(
      x, config().transformer.depth, pass,
      [&](int64_t i, const at::Tensor& in) {
        return run_block(
            [&own = *own, &block = blocks[i], span = span_of(i),
             tokens](const std::vector<at::Tensor>& inputs) {
              return block.forward(inputs[0], inputs[1], own, span, tokens);
            },
            {in_time(i, in), c}, i < recompute_blocks(), hook(), block_bucket(i));
      },
      [&] { return blocks[0].first_norm(in_time(0, x), c); });
  return out.defined() ? to_clip(final_layer.forward(out, c)) : at::Tensor();
}

}  // namespace kinora::models
