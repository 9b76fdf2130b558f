#include "kinora/models/transformers/video_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/ops/parameter.h"
#include "kinora/ops/random.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden, P patch side, p its frames,
// L text tokens, D their width.

namespace kinora::models {
namespace {

constexpr double kLongestPeriod = 10000.0;

at::Tensor as_clip(const at::Tensor& x_t) {
  return x_t.dim() == 4 ? x_t.unsqueeze(2) : x_t;
}

at::Tensor value_of(const nn::Parameter& parameter) {
  return ops::with_gradient(parameter.value, parameter.grad);
}

}  // namespace

// ---- patches ----

at::Tensor to_patches(const ModelConfig& config, const at::Tensor& x_t) {
  const auto [frames, rows, columns] = grid_of(config, x_t);
  const int64_t p = config.transformer.patch;
  const int64_t pt = config.transformer.patch_frames;
  const at::Tensor clip = as_clip(x_t);
  const at::Tensor full = at::constant_pad_nd(
      clip,
      {0, columns * p - clip.size(4), 0, rows * p - clip.size(3), 0, frames * pt - clip.size(2)});
  return full.view({clip.size(0), clip.size(1), frames, pt, rows, p, columns, p})
      .permute({0, 2, 4, 6, 1, 3, 5, 7})
      .reshape({clip.size(0), frames, rows * columns, -1});
}

at::Tensor from_patches(const ModelConfig& config, const at::Tensor& patches,
                        const at::Tensor& x_t) {
  const auto [frames, rows, columns] = grid_of(config, x_t);
  const at::Tensor clip = as_clip(x_t);
  const int64_t p = config.transformer.patch;
  const int64_t pt = config.transformer.patch_frames;
  const at::Tensor full = patches.to(at::kFloat)
                              .view({clip.size(0), frames, rows, columns, pt, p, p, -1})
                              .permute({0, 7, 1, 4, 2, 5, 3, 6})
                              .reshape({clip.size(0), -1, frames * pt, rows * p, columns * p});
  const at::Tensor cropped = full.narrow(2, 0, clip.size(2))
                                 .narrow(3, 0, clip.size(3))
                                 .narrow(4, 0, clip.size(4))
                                 .contiguous();
  return x_t.dim() == 4 ? cropped.squeeze(2) : cropped;
}

at::Tensor channels_fastest(const ModelConfig& config, const at::Tensor& patches) {
  return patches.unflatten(-1, {-1, config.transformer.patch_volume()})
      .transpose(-1, -2)
      .flatten(-2);
}

// ---- positions ----

nn::Linear projection(int64_t hidden, int64_t parts) {
  return {hidden, parts * hidden, nn::Init::xavier_uniform(hidden, parts * hidden)};
}

at::Tensor sin_cos_positions(const at::Tensor& positions, int64_t dims) {
  const at::Tensor exponents =
      at::arange(dims / 2, positions.options()) / (-static_cast<double>(dims) / 2);
  const at::Tensor angles = at::outer(positions, at::pow(kLongestPeriod, exponents));
  return at::cat({at::sin(angles), at::cos(angles)}, 1).to(at::kFloat);
}

at::Tensor frame_positions(const at::Tensor& rows, const at::Tensor& columns, int64_t hidden) {
  const int64_t half = hidden / 2;
  const std::vector<int64_t> shape = {rows.size(0), columns.size(0), half};
  return at::cat({sin_cos_positions(columns, half).unsqueeze(0).expand(shape),
                  sin_cos_positions(rows, half).unsqueeze(1).expand(shape)},
                 -1)
      .view({1, 1, -1, hidden});
}

at::Tensor picture_scale(const ModelConfig& config, const diffusion::Conditions& conditions) {
  KINORA_CHECK(conditions.height.defined() && conditions.width.defined(), kShape, "[model] ",
               config.name, " needs the clips' height and width in pixels");
  // Read where it is: the host never waits for it.
  return (conditions.height.select(0, 0).to(at::kDouble) *
          conditions.width.select(0, 0).to(at::kDouble))
             .sqrt() /
         static_cast<double>(config.transformer.base_pixels);
}

at::Tensor scaled_positions(const ModelConfig& config, const Grid& grid, const at::Tensor& scale) {
  const double base = std::round(std::sqrt(static_cast<double>(grid.tokens_a_frame())));
  const auto positions = [&](int64_t count) {
    return at::arange(count, scale.options()) * (base / static_cast<double>(count)) / scale;
  };
  return frame_positions(positions(grid.rows), positions(grid.columns), config.transformer.hidden);
}

at::Tensor stretched_positions(const ModelConfig& config, const Grid& grid,
                               const at::Device& device) {
  const Grid own = grid_of(config);
  const double base = std::floor(std::sqrt(static_cast<double>(own.tokens_a_frame())));
  const auto along = [&](int64_t count) {
    return at::arange(count, at::TensorOptions(device).dtype(at::kDouble)) *
           (base / static_cast<double>(count) / config.transformer.position_scale);
  };
  return frame_positions(along(grid.rows), along(grid.columns), config.transformer.hidden);
}

at::Tensor rotary_angles(const at::Tensor& frequencies, const at::Tensor& positions) {
  return at::outer(positions.to(at::kFloat), frequencies).repeat_interleave(2, -1);
}

at::Tensor clip_angles(const std::vector<int64_t>& axes, const Grid& grid, const at::Device& device,
                       double base) {
  std::vector<at::Tensor> positions;
  for (const int64_t side : {grid.frames, grid.rows, grid.columns}) {
    positions.push_back(at::arange(side, at::TensorOptions(device).dtype(at::kDouble)));
  }
  return clip_angles(axes, positions, base);
}

at::Tensor clip_angles(const std::vector<int64_t>& axes, const std::vector<at::Tensor>& positions,
                       double base) {
  std::vector<at::Tensor> angles;
  for (size_t axis = 0; axis < positions.size(); ++axis) {
    const at::Tensor exponents =
        at::arange(0, axes[axis], 2, positions[axis].options()) / -static_cast<double>(axes[axis]);
    std::vector<int64_t> place(positions.size() + 1, 1);
    place[axis] = positions[axis].size(0);
    place.back() = axes[axis];
    angles.push_back(at::outer(positions[axis], at::pow(base, exponents))
                         .repeat_interleave(2, -1)
                         .to(at::kFloat)
                         .view(place)
                         .expand({positions[0].size(0), positions[1].size(0), positions[2].size(0),
                                  axes[axis]}));
  }
  return at::cat(angles, -1).flatten(1, 2);
}

// ---- modulation ----

nn::Parameter random_table(int64_t rows, int64_t hidden) {
  return {.shape = {rows, hidden},
          .init = nn::Init::normal(1.0 / std::sqrt(static_cast<double>(hidden))),
          .fp32_island = true,
          .value = {},
          .grad = {}};
}

FrameCondition FrameCondition::plus(const at::Tensor& added) const {
  return {noised + added, given.defined() ? given + added.unsqueeze(1) : given, frame_mask};
}

at::Tensor FrameCondition::of_frames() const {
  if (!frame_mask.defined()) {
    return noised.unsqueeze(1);
  }
  return at::where(frame_mask.unsqueeze(2), noised.unsqueeze(1), given);
}

FrameCondition embed_time(const TimestepEmbedder& embedder, const at::Tensor& t,
                          const at::Tensor& frame_mask, const at::Tensor& given_levels) {
  if (!frame_mask.defined()) {
    return {embedder.forward(t), {}, {}};
  }
  const at::Tensor levels =
      given_levels.defined() ? given_levels : at::zeros_like(t).unsqueeze(1);  // [B, T or 1]
  const at::Tensor given =
      embedder.forward(levels.flatten()).view({levels.size(0), levels.size(1), -1});
  return {embedder.forward(t), given,
          given_levels.defined() ? frame_mask.logical_or(t.unsqueeze(1) <= levels) : frame_mask};
}

at::Tensor modulation_vectors(const Modulation& modulation, const FrameCondition& condition) {
  const auto vectors = [&modulation](const at::Tensor& c) {
    return at::cat(modulation.forward(c), 2);  // [rows, 1, n, C]
  };
  if (!condition.frame_mask.defined()) {
    return vectors(condition.noised);
  }
  const at::Tensor& given = condition.given;  // [B, T or 1, C]
  const at::Tensor of_given = vectors(given.flatten(0, 1));
  return at::where(
      condition.frame_mask.unsqueeze(2).unsqueeze(3), vectors(condition.noised),
      of_given.view({given.size(0), given.size(1), of_given.size(2), of_given.size(3)}));
}

std::vector<at::Tensor> modulation_of(const nn::Parameter& table, const at::Tensor& vectors) {
  return (value_of(table) + vectors).unsqueeze(3).unbind(2);
}

// ---- layers ----

SizeEmbedder::SizeEmbedder(int64_t hidden) : TimestepEmbedder(hidden, 1.0) {}

at::Tensor SizeEmbedder::forward(const at::Tensor& values) const {
  return TimestepEmbedder::forward(values.flatten()).view({values.size(0), -1});
}

CaptionEmbedder::CaptionEmbedder(const ModelConfig& config)
    : y_proj(config.text_channels, config.transformer.hidden, config.transformer.hidden),
      y_embedding(at::empty({config.text_tokens, config.text_channels}, at::kFloat)) {
  ops::random_fill(y_embedding,
                   {.seed = 0,
                    .sample = random_name("y_embedder.y_embedding"),
                    .step = 0,
                    .purpose = RandomPurpose::kInit},
                   kernels::Distribution::kNormal,
                   1.0 / std::sqrt(static_cast<double>(config.text_channels)));
  add_child("y_proj", y_proj);
  add_buffer("y_embedding", y_embedding);
}

at::Tensor CaptionEmbedder::forward(const at::Tensor& text, const at::Tensor& null_text) const {
  KINORA_CHECK(text.defined() && text.dim() == 3 && text.size(1) <= y_embedding.size(0) &&
                   text.size(2) == y_embedding.size(1),
               kShape, "[model] text must have shape [B, up to ", y_embedding.size(0), ", ",
               y_embedding.size(1), "], got ", text.sizes());
  at::Tensor captions = text;
  if (null_text.defined()) {
    captions = at::where(null_text.view({-1, 1, 1}), y_embedding.narrow(0, 0, text.size(1)),
                         text.to(at::kFloat));
  }
  return tapped(y_proj.forward(captions));
}

Rope::Rope(int64_t dim)
    : freqs(
          at::pow(kLongestPeriod, at::arange(0, dim, 2, at::kDouble) / (-static_cast<double>(dim)))
              .to(at::kFloat)) {
  add_buffer("freqs", freqs);
}

CaptionFinalLayer::CaptionFinalLayer(const ModelConfig& config)
    : linear(config.transformer.hidden, config.transformer.patch_volume() * config.out_channels(),
             nn::Init::zero(), {.fp32_island = true}),
      scale_shift_table(random_table(2, config.transformer.hidden)) {
  add_child("linear", linear);
  add_parameter("scale_shift_table", scale_shift_table);
}

at::Tensor CaptionFinalLayer::forward(const at::Tensor& x, const at::Tensor& c) const {
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, c.unsqueeze(2));
  return tapped(linear.forward(modulated_norm(x, m[0], m[1])));
}

at::Tensor CaptionFinalLayer::modulation(const at::Tensor& c) const {
  return value_of(scale_shift_table) + c.unsqueeze(2);
}

CaptionBlock::CaptionBlock(const TransformerConfig& config)
    : attn({.hidden = config.hidden,
            .heads = config.heads,
            .qk_norm = config.qk_norm == ops::Switch::kOn}),
      cross_attn({.hidden = config.hidden, .heads = config.heads}),
      mlp(config.hidden, config.mlp_hidden(), config.hidden),
      scale_shift_table(random_table(6, config.hidden)) {
  add_child("attn", attn);
  add_child("cross_attn", cross_attn);
  add_child("mlp", mlp);
  add_parameter("scale_shift_table", scale_shift_table);
}

at::Tensor CaptionBlock::forward(const at::Tensor& x, const BlockConditions& conditions,
                                 const nn::Sequence& sequence, const Attend& attend) const {
  const std::vector<at::Tensor> m = modulation_of(scale_shift_table, conditions.vectors);
  const at::Tensor& shift_msa = m[0];
  const at::Tensor& scale_msa = m[1];
  const at::Tensor& gate_msa = m[2];
  const at::Tensor h = modulated_norm(x, shift_msa, scale_msa);
  const at::Tensor y = gated_sum(x, gate_msa, attend(attn, h));
  return tapped(text_and_mlp(y, conditions, sequence, m));
}

at::Tensor CaptionBlock::first_norm(const at::Tensor& x, const BlockConditions& conditions) const {
  const std::vector<at::Tensor> m =
      modulation_of(scale_shift_table, conditions.vectors.narrow(2, 0, kNumVectors));
  return modulated_norm(x, m[0], m[1]);
}

at::Tensor CaptionBlock::text_and_mlp(const at::Tensor& x, const BlockConditions& conditions,
                                      const nn::Sequence& sequence,
                                      const std::vector<at::Tensor>& m) const {
  const at::Tensor& shift_mlp = m[3];
  const at::Tensor& scale_mlp = m[4];
  const at::Tensor& gate_mlp = m[5];
  at::Tensor read =
      sequence.cross_attention(cross_attn, x, conditions.text, conditions.text_lengths);
  if (conditions.reads_text.defined()) {
    read = at::where(
        conditions.reads_text, read,
        sequence.cross_attention(cross_attn, x, conditions.null_text, conditions.text_lengths));
  }
  const at::Tensor y = x + read;
  return gated_sum(y, gate_mlp, sequence.mlp(mlp, modulated_norm(y, shift_mlp, scale_mlp)));
}

ops::Block CaptionBlock::fast(const FastPass& pass, ops::Branch attention) const {
  return {.branches = {std::move(attention), text_branch(pass, cross_attn),
                       mlp_branch(pass, mlp, kMlpVectors)},
          .num_vectors = kNumVectors};
}

at::Tensor CaptionBlock::table() const {
  return value_of(scale_shift_table);
}

std::vector<nn::Linear*> CaptionBlock::linears() {
  return {&attn.qkv, &attn.proj, &cross_attn.q_linear, &cross_attn.kv_linear, &cross_attn.proj,
          &mlp.fc1,  &mlp.fc2};
}

// ---- blocks in a model ----

std::vector<std::string> numbered(const std::string& list, int64_t depth) {
  std::vector<std::string> paths;
  for (int64_t i = 0; i < depth; ++i) {
    paths.push_back(list + "." + std::to_string(i));
  }
  return paths;
}

void set_init(nn::Module& module, const std::vector<std::string>& endings, nn::Init init) {
  for (const auto& [path, parameter] : module.named_parameters()) {
    for (const std::string& ending : endings) {
      if (path.ends_with(ending)) {
        parameter->init = init;
      }
    }
  }
}

std::vector<nn::BucketSpec> block_buckets(nn::Module& model,
                                          const std::vector<std::string>& blocks) {
  nn::BucketSpec embedders{.name = "embedders", .parameters = {}, .fp32_island = true};
  nn::BucketSpec text{.name = "text", .parameters = {}};
  nn::BucketSpec tables{.name = "tables", .parameters = {}, .fp32_island = true};
  nn::BucketSpec final_layer{.name = "final_layer", .parameters = {}, .fp32_island = true};
  std::map<std::string, std::vector<std::string>> in_blocks;
  for (const auto& [path, parameter] : model.named_parameters()) {
    const auto block = std::find_if(blocks.begin(), blocks.end(), [&path = path](const auto& name) {
      return path.starts_with(name + ".");
    });
    if (block != blocks.end()) {
      (parameter->fp32_island ? tables.parameters : in_blocks[*block]).push_back(path);
    } else if (path.starts_with("final_layer.")) {
      final_layer.parameters.push_back(path);
    } else {
      (parameter->fp32_island ? embedders : text).parameters.push_back(path);
    }
  }
  std::vector<nn::BucketSpec> buckets = {std::move(embedders), std::move(text), std::move(tables)};
  for (const std::string& block : blocks) {
    buckets.push_back({.name = block,
                       .parameters = std::move(in_blocks[block]),
                       .fp32_island = false,
                       .ring = "blocks",
                       .is_block = true});
  }
  buckets.push_back(std::move(final_layer));
  std::erase_if(buckets, [](const nn::BucketSpec& bucket) { return bucket.parameters.empty(); });
  return buckets;
}

}  // namespace kinora::models
