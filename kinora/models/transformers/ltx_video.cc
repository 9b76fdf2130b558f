#include "kinora/models/transformers/ltx_video.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <numbers>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/nn/self_attention.h"
#include "kinora/ops/parameter.h"

// Shapes: B batch, T frames of patches, S patches of a frame, L text tokens, C hidden, H heads.

namespace kinora::models {
namespace {

constexpr int64_t kLtxVectors = 6;
constexpr double kLtxNormEpsilon = 1e-5;
constexpr int64_t kLtxAxes = 3;  // frame, row, column
// The clip whose positions are 0 to 1: seconds, and pixels along a side.
constexpr double kLtxSeconds = 20.0;
constexpr double kLtxPixels = 2048.0;
constexpr double kLtxRotaryBase = 10000.0;

}  // namespace

LtxBlock::LtxBlock(const TransformerConfig& config)
    : attn(config, kLtxNormEpsilon),
      cross_attn(config, kLtxNormEpsilon),
      mlp(config.hidden, config.mlp_hidden(), config.hidden),
      scale_shift_table(random_table(kLtxVectors, config.hidden)) {
  add_child("attn", attn);
  add_child("cross_attn", cross_attn);
  add_child("mlp", mlp);
  add_parameter("scale_shift_table", scale_shift_table);
}

at::Tensor LtxBlock::forward(const at::Tensor& x, const BlockConditions& conditions,
                             const nn::Sequence& sequence, const ClipTokens& tokens) const {
  const auto result = [&sequence](ops::BranchKind kind, const auto& compute) {
    return sequence.branch(kind, [&] { return std::vector{compute()}; })[0];
  };
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor mixed =
      gated_sum(x, m[2], result(ops::BranchKind::kSpace, [&] {
                  return attn.forward(modulated_rms_norm(x, m[0], m[1]), tokens, sequence);
                }));
  const at::Tensor y = mixed + result(ops::BranchKind::kText, [&] {
                         return cross_attn.forward(mixed, conditions.text, /*num_images=*/0,
                                                   conditions.text_lengths);
                       });
  return tapped(gated_sum(y, m[5], sequence.mlp(mlp, modulated_rms_norm(y, m[3], m[4]))));
}

at::Tensor LtxBlock::first_norm(const at::Tensor& x, const BlockConditions& conditions) const {
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  return modulated_rms_norm(x, m[0], m[1]);
}

at::Tensor LtxBlock::table() const {
  return ops::with_gradient(scale_shift_table.value, scale_shift_table.grad);
}

ops::Block LtxBlock::fast(const FastPass& pass, const ClipTokens& tokens,
                          const ops::HeadRule& rotation) const {
  return {.branches = {attn.fast(pass, tokens, rotation, {.shift = 0, .scale = 1, .gate = 2}),
                       {.body = cross_attn.body(), .kept = pass.kept(ops::BranchKind::kText)},
                       mlp_branch(pass, mlp, {.shift = 3, .scale = 4, .gate = 5})},
          .num_vectors = kLtxVectors};
}

LtxVideo::LtxVideo(const ModelConfig& config) : CaptionModel(config), blocks(config.transformer) {
  y_embedder.null_caption().zero_();
  add_child("blocks", blocks);
  const int64_t depth = config.transformer.depth;
  set_block_buckets(numbered("blocks", depth), linears_of(blocks, depth),
                    readers_of(blocks, depth));
}

void LtxVideo::resolve(ModelConfig& config, const ModelConfig& published) {
  if (config.compression == ModelConfig{}.compression) {
    config.compression = published.compression;
  }
  if (config.frame_compression == ModelConfig{}.frame_compression) {
    config.frame_compression = published.frame_compression;
  }
  if (config.transformer.patch == 0) {
    config.transformer.patch = 1;
  }
  resolve_transformer(config, published);
  const TransformerConfig& own = config.transformer;
  KINORA_CHECK(own.patch == 1 && own.patch_frames == 1, kConfig,
               "[ltx_video] model.patch and model.patch_frames must be 1, since the autoencoder "
               "makes one token of each place, got ",
               own.patch, " and ", own.patch_frames);
  KINORA_CHECK(own.hidden >= 2 * kLtxAxes && own.hidden % 2 == 0, kConfig,
               "[ltx_video] model.hidden must be even and at least ", 2 * kLtxAxes,
               " for its rotary positions, got ", own.hidden);
}

double LtxVideo::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.attention(m.tokens * window_share(config)) + m.cross_attention + m.mlp) +
         m.modulation + m.captions;
}

at::Tensor LtxVideo::null_caption() const {
  return text_encoder ? at::Tensor() : y_embedder.null_caption();
}

CaptionModel::TimeVectors LtxVideo::time_vectors(const at::Tensor& t,
                                                 const diffusion::Conditions& conditions) const {
  const FrameCondition condition =
      embed_time(t_embedder, t, conditions.frame_mask, conditions.given_levels);
  return {condition, modulation_vectors(t_block, condition)};
}

at::Tensor LtxVideo::table(int64_t use) const {
  return blocks[use].table();
}

at::Tensor LtxVideo::angles(const Grid& grid, const at::Tensor& fps,
                            const at::Tensor& shown_places) const {
  // In fp32 and in this order, as it was trained: the highest frequencies turn by thousands.
  const int64_t hidden = config().transformer.hidden;
  const int64_t count = hidden / (2 * kLtxAxes);  // frequencies of each axis
  const at::TensorOptions options = fps.options();
  const at::Tensor frequencies =
      at::pow(kLtxRotaryBase, at::linspace(0.0, 1.0, count, options)) * std::numbers::pi / 2.0;
  const auto pixels = [&](int64_t places) {
    return at::arange(places, options) * static_cast<double>(config().compression) / kLtxPixels;
  };
  const auto of_latent = static_cast<double>(config().frame_compression);
  const int64_t shown = shown_places.defined() ? shown_places.size(1) : 0;
  const at::Tensor latents = at::arange(grid.frames - shown, options);
  at::Tensor seconds;  // [B, T]
  if (config().transformer.single_first_frame) {
    at::Tensor frames =
        (latents * of_latent + (1.0 - of_latent)).clamp_min(0.0).expand({fps.size(0), -1});
    if (shown > 0) {
      frames = at::cat({shown_places, frames}, 1);
    }
    seconds = frames * (1.0 / fps).unsqueeze(1) / kLtxSeconds;
  } else {
    seconds = latents * (of_latent / fps).unsqueeze(1) / kLtxSeconds;
  }
  const std::vector<int64_t> shape = {fps.size(0), grid.frames, grid.rows, grid.columns};
  const at::Tensor places = at::stack({seconds.view({-1, grid.frames, 1, 1}).expand(shape),
                                       pixels(grid.rows).view({1, 1, -1, 1}).expand(shape),
                                       pixels(grid.columns).expand(shape)},
                                      -1)
                                .flatten(2, 3);  // [B, T, S, 3]
  const at::Tensor turns = (frequencies.unsqueeze(1) * (places.unsqueeze(3) * 2.0 - 1.0))
                               .flatten(3)  // of each frequency the three axes
                               .repeat_interleave(2, -1);
  // The first dims do not turn where they are no multiple.
  return at::constant_pad_nd(turns, {hidden - turns.size(3), 0});
}

at::Tensor LtxVideo::fast_text_lengths(const diffusion::Conditions& conditions) const {
  const at::Tensor lengths = caption_lengths(config(), conditions);
  return conditions.null_text.defined() && !text_encoder
             ? at::where(conditions.null_text, 1, lengths)
             : lengths;
}

at::Tensor LtxVideo::compute(const at::Tensor& x_t, const at::Tensor& t,
                             const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  check_inputs(x_t, t, conditions);
  const Grid grid = grid_of(config(), x_t);
  const ClipTokens places = clip_tokens(
      grid,
      angles(grid, required(conditions.fps, "fps", t).to(at::kFloat), conditions.shown_places));
  const at::Tensor x =  // [B, T, S', C]
      x_embedder.forward(own_tokens(to_patches(config(), x_t), grid));
  if (is_fast()) {
    const FastPass fast = fast_pass(x, grid.tokens_a_frame(), pass);
    const ops::HeadRule rotation = nn::head_rule({}, {}, places.rotary);
    std::vector<ops::Block> stacked;
    for (const int64_t use : blocks_of(pass)) {
      stacked.push_back(blocks[use].fast(fast, places, rotation));
    }
    return run_fast(std::move(stacked), x, x_t, t, conditions, pass);
  }
  const TimeVectors of_time = time_vectors(t, conditions);
  BlockConditions inputs = block_conditions(of_time.vectors, conditions);
  inputs.text_lengths = fast_text_lengths(conditions);
  const std::shared_ptr<const nn::Sequence> tokens = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, config().transformer.depth, pass,
      [&](int64_t i, const at::Tensor& clip) {
        return run_plain(i, i < recompute_blocks(), clip, inputs,
                         [&tokens = *tokens, &block = blocks[i], places](
                             const at::Tensor& in, const BlockConditions& given) {
                           return block.forward(in, given, tokens, places);
                         });
      },
      [&] { return blocks[0].first_norm(x, inputs); });
  return finish(out, of_time.condition, x_t);
}

}  // namespace kinora::models
