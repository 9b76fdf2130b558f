#include "kinora/models/transformers/dit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/layers/time_waves.h"
#include "kinora/models/transformers/branches.h"
#include "kinora/models/transformers/grid.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/ops/parameter.h"
#include "kinora/ops/patches.h"
#include "kinora/ops/recompute.h"

// Shapes: B batch, N tokens, C hidden, P patch side, h x w the grid of patches.

namespace kinora::models {
namespace {

constexpr double kMaxPeriod = 10000.0;
constexpr double kEmbeddingStd = 0.02;

}  // namespace

PatchEmbed::Projection::Projection(const ModelConfig& config, int64_t dims)
    : weight{.shape = {config.transformer.hidden, config.in_channels + channels_beside(config),
                       config.transformer.patch, config.transformer.patch},
             .init = nn::Init::xavier_uniform(
                 (config.in_channels + channels_beside(config)) * config.transformer.patch_volume(),
                 config.transformer.hidden),
             .fp32_island = true,
             .value = {},
             .grad = {}},
      bias{.shape = {config.transformer.hidden},
           .init = nn::Init::zero(),
           .fp32_island = true,
           .value = {},
           .grad = {}} {
  if (dims == 3) {
    weight.shape.insert(weight.shape.begin() + 2, config.transformer.patch_frames);
  } else if (dims == 1) {
    weight.shape = {config.transformer.hidden, weight.shape[1] * config.transformer.patch_volume()};
  }
  add_parameter("weight", weight);
  add_parameter("bias", bias);
}

PatchEmbed::PatchEmbed(const ModelConfig& config, int64_t dims) : proj(config, dims) {
  add_child("proj", proj);
}

at::Tensor PatchEmbed::forward(const at::Tensor& patches) const {
  const at::Tensor weight = ops::with_gradient(proj.weight.value, proj.weight.grad).flatten(1);
  return tapped(at::linear(patches, weight, ops::with_gradient(proj.bias.value, proj.bias.grad)));
}

VectorEmbedder::Mlp::Mlp(int64_t channels, int64_t hidden)
    : first(channels, hidden, nn::Init::normal(kEmbeddingStd), {.fp32_island = true}),
      second(hidden, hidden, nn::Init::normal(kEmbeddingStd), {.fp32_island = true}) {
  first.set_cut({nn::Cut::Dim::kOutputs, {{hidden, hidden}}});
  second.set_cut({nn::Cut::Dim::kInputs, {{hidden, hidden}}});
  add_child("0", first);
  add_child("2", second);
}

VectorEmbedder::VectorEmbedder(int64_t channels, int64_t hidden) : mlp(channels, hidden) {
  add_child("mlp", mlp);
}

at::Tensor VectorEmbedder::forward(const at::Tensor& vector) const {
  return tapped(mlp.second.forward(at::silu(mlp.first.forward(vector))));
}

TimestepEmbedder::TimestepEmbedder(int64_t hidden, double time_scale, int64_t dims)
    : VectorEmbedder(dims, hidden), time_scale_(time_scale), dims_(dims) {}

at::Tensor TimestepEmbedder::forward(const at::Tensor& t) const {
  return VectorEmbedder::forward(time_waves(t * time_scale_, dims_));
}

LabelEmbedder::Table::Table(const ModelConfig& config)
    : weight{.shape = {config.num_classes + 1, config.transformer.hidden},
             .init = nn::Init::normal(kEmbeddingStd),
             .fp32_island = true,
             .value = {},
             .grad = {}} {
  add_parameter("weight", weight);
}

LabelEmbedder::LabelEmbedder(const ModelConfig& config) : embedding_table(config) {
  add_child("embedding_table", embedding_table);
}

at::Tensor LabelEmbedder::forward(const at::Tensor& labels) const {
  const nn::Parameter& table = embedding_table.weight;
  return tapped(at::embedding(ops::with_gradient(table.value, table.grad), labels));
}

Modulation::Modulation(int64_t hidden, int64_t num_vectors, bool fp32_island, int64_t condition)
    : num_vectors_(num_vectors),
      linear(condition > 0 ? condition : hidden, num_vectors * hidden, nn::Init::zero(),
             {.fp32_island = fp32_island}) {
  linear.set_cut(nn::Cut::of_whole_inputs(linear.weight.shape[1]));
  add_child("1", linear);
}

std::vector<at::Tensor> Modulation::forward(const at::Tensor& c) const {
  const at::Tensor vectors = tapped(linear.forward(at::silu(c)).to(at::kFloat));
  return vectors.view({vectors.size(0), 1, 1, -1}).chunk(num_vectors_, -1);
}

DiTBlock::DiTBlock(const TransformerConfig& config)
    : attn({.hidden = config.hidden, .heads = config.heads}),
      mlp(config.hidden, config.mlp_hidden(), config.hidden),
      adaLN_modulation(config.hidden, 6, false) {
  add_child("attn", attn);
  add_child("mlp", mlp);
  add_child("adaLN_modulation", adaLN_modulation);
}

ops::Block DiTBlock::fast(const FastPass& pass, nn::Span span) const {
  return {.branches = {attention_branch(pass, attn, span, {.shift = 0, .scale = 1, .gate = 2}),
                       mlp_branch(pass, mlp, {.shift = 3, .scale = 4, .gate = 5})},
          .num_vectors = 6};
}

std::vector<nn::Linear*> DiTBlock::linears() {
  return {&attn.qkv, &attn.proj, &mlp.fc1, &mlp.fc2};
}

at::Tensor DiTBlock::forward(const at::Tensor& x, const at::Tensor& c, const nn::Sequence& sequence,
                             nn::Span span, int64_t tokens) const {
  const std::vector<at::Tensor> m = adaLN_modulation.forward(c);
  const at::Tensor& shift_msa = m[0];
  const at::Tensor& scale_msa = m[1];
  const at::Tensor& gate_msa = m[2];
  const at::Tensor& shift_mlp = m[3];
  const at::Tensor& scale_mlp = m[4];
  const at::Tensor& gate_mlp = m[5];
  const at::Tensor h = modulated_norm(x, shift_msa, scale_msa);
  const at::Tensor y = gated_sum(x, gate_msa, sequence.self_attention(attn, h, span, tokens));
  const at::Tensor h_mlp = modulated_norm(y, shift_mlp, scale_mlp);
  return tapped(gated_sum(y, gate_mlp, sequence.mlp(mlp, h_mlp)));
}

at::Tensor DiTBlock::first_norm(const at::Tensor& x, const at::Tensor& c) const {
  const std::vector<at::Tensor> m = adaLN_modulation.forward(c);
  return modulated_norm(x, m[0], m[1]);
}

FinalLayer::FinalLayer(const ModelConfig& config)
    : linear(config.transformer.hidden,
             config.transformer.patch * config.transformer.patch * config.out_channels(),
             nn::Init::zero(), {.fp32_island = true}),
      adaLN_modulation(config.transformer.hidden, 2, true) {
  add_child("linear", linear);
  add_child("adaLN_modulation", adaLN_modulation);
}

at::Tensor FinalLayer::forward(const at::Tensor& x, const at::Tensor& c) const {
  const std::vector<at::Tensor> m = adaLN_modulation.forward(c);  // shift, scale
  return tapped(linear.forward(modulated_norm(x, m[0], m[1])));
}

at::Tensor FinalLayer::modulation(const at::Tensor& c) const {
  return at::cat(adaLN_modulation.forward(c), -1).flatten(1);
}

DiT::Blocks::Blocks(const TransformerConfig& config) {
  for (int64_t i = 0; i < config.depth; ++i) {
    items.push_back(std::make_unique<DiTBlock>(config));
    items.back()->set_layer(i + 1);
    add_child(std::to_string(i), *items.back());
  }
}

DiT::DiT(const ModelConfig& config)
    : BlockModel(config),
      x_embedder(config, 2),
      t_embedder(config.transformer.hidden, config.time_scale),
      y_embedder(config),
      pos_embed(sin_cos_position_embedding(config.transformer.hidden, grid_of(config).rows,
                                           grid_of(config).columns)),
      blocks(config.transformer),
      final_layer(config) {
  add_child("x_embedder", x_embedder);
  add_child("t_embedder", t_embedder);
  add_child("y_embedder", y_embedder);
  add_buffer("pos_embed", pos_embed);
  add_child("blocks", blocks);
  add_child("final_layer", final_layer);
  final_layer.set_layer(config.transformer.depth + 1);
  std::vector<std::vector<nn::Linear*>> linears;
  for (const auto& block : blocks.items) {
    linears.push_back(block->linears());
  }
  set_buckets(dit_buckets(config.transformer.depth), std::move(linears));
}

double DiT::macs(const ModelConfig& config) {
  const TransformerMacs m(config);
  return m.model(m.mlp + m.attention(m.tokens) + m.modulation);
}

at::Tensor DiT::compute(const at::Tensor& x_t, const at::Tensor& t,
                        const diffusion::Conditions& conditions, const diffusion::Pass& pass) {
  KINORA_CHECK(x_t.dim() == 4 && x_t.size(1) == config().in_channels &&
                   x_t.size(2) == config().height && x_t.size(3) == config().width,
               kShape, "[dit] x_t must have shape [B, ", config().in_channels, ", ",
               config().height, ", ", config().width, "], got ", x_t.sizes());
  KINORA_CHECK(t.dim() == 1 && t.size(0) == x_t.size(0) && t.scalar_type() == at::kFloat, kShape,
               "[dit] t must be float32 [", x_t.size(0), "], got ", t.scalar_type(), " ",
               t.sizes());
  KINORA_CHECK(conditions.labels.defined() && conditions.labels.dim() == 1 &&
                   conditions.labels.size(0) == x_t.size(0),
               kShape, "[dit] labels must be given, int64 [", x_t.size(0), "]");

  const at::Tensor patches = ops::patchify(x_t, config().transformer.patch, x_t.scalar_type());
  // [B, 1, N, C]
  const at::Tensor x = x_embedder.forward(sequence().enter(patches.unsqueeze(1))) +
                       sequence().enter(pos_embed.unsqueeze(1));
  const int64_t tokens = grid_of(config()).tokens_a_frame();
  if (pass.prepared.any()) {
    const at::Tensor h =
        run(fast_stack(x, pass), {.x = x, .vectors = pass.prepared.of_times}, pass);
    return to_image(sequence().leave(final_layer.project(h), tokens).squeeze(1));
  }
  const at::Tensor c = condition(t, conditions.labels);  // [B, C]
  if (is_fast()) {
    const at::Tensor h = run(fast_stack(x, pass),
                             {.x = x, .condition = c, .vectors = final_layer.modulation(c)}, pass);
    return h.defined() ? to_image(sequence().leave(final_layer.project(h), tokens).squeeze(1))
                       : at::Tensor();
  }
  const at::Tensor out = plain_blocks(x, c, pass);
  return out.defined() ? tapped(to_image(sequence().leave(out, tokens).squeeze(1))) : at::Tensor();
}

at::Tensor DiT::condition(const at::Tensor& t, const at::Tensor& labels) const {
  return t_embedder.forward(t) + y_embedder.forward(labels);
}

at::Tensor DiT::to_image(const at::Tensor& patches) const {
  return ops::unpatchify(patches, config().height, config().width, config().transformer.patch);
}

diffusion::Prepared DiT::prepare(const at::Tensor& times, const diffusion::Conditions& conditions) {
  (void)BlockModel::prepare(times, conditions);
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  const int64_t batch = conditions.labels.size(0);
  const int64_t columns = (6 * config().transformer.depth + 2) * config().transformer.hidden;
  const int64_t rows = times.size(0) * batch;
  if (!is_fast() || pipeline() != nullptr ||
      rows * columns * static_cast<int64_t>(sizeof(float)) > kMaxBytes) {
    return {};
  }
  const at::Tensor c = condition(times.repeat_interleave(batch),
                                 conditions.labels.repeat({times.size(0)}));  // [S B, C]
  return {.of_times = stack_vectors(fast_stack({}, {}), c, final_layer.modulation(c))
                          .view({times.size(0), batch, columns})};
}

void DiT::call_hook(ops::BucketMoment moment, int64_t block, BlockSpan of_pass) const {
  DiTBlockBuckets buckets = dit_block_buckets(config().transformer.depth, block);
  buckets.opens_slab |= block == of_pass.first;
  buckets.closes_slab |= block + 1 == of_pass.end;
  const bool forward =
      moment == ops::BucketMoment::kBeforeForward || moment == ops::BucketMoment::kAfterForward;
  const bool before =
      moment == ops::BucketMoment::kBeforeForward || moment == ops::BucketMoment::kBeforeBackward;
  if (forward == before ? buckets.opens_slab : buckets.closes_slab) {
    hook()(moment, buckets.modulation);
  }
  hook()(moment, buckets.block);
}

at::Tensor DiT::plain_block(int64_t i, at::Tensor x, const at::Tensor& c,
                            const nn::Sequence& tokens, BlockSpan of_pass) const {
  const DiTBlock& block = *blocks.items[static_cast<size_t>(i)];
  if (hook()) {
    call_hook(ops::BucketMoment::kBeforeForward, i, of_pass);
    x = ops::on_backward(
        x, [this, i, of_pass] { call_hook(ops::BucketMoment::kAfterBackward, i, of_pass); });
  }
  const auto forward = [&tokens, &block,
                        count = grid_of(config()).tokens_a_frame()](const auto& in) {
    return block.forward(in[0], in[1], tokens, nn::Span::kFrame, count);
  };
  const std::vector<at::Tensor> in = {x, c};
  x = i < recompute_blocks() ? ops::recompute(forward, in) : forward(in);
  if (hook()) {
    call_hook(ops::BucketMoment::kAfterForward, i, of_pass);
    x = ops::on_backward(
        x, [this, i, of_pass] { call_hook(ops::BucketMoment::kBeforeBackward, i, of_pass); });
  }
  return x;
}

at::Tensor DiT::plain_blocks(const at::Tensor& x, const at::Tensor& c,
                             const diffusion::Pass& pass) const {
  const int64_t depth = config().transformer.depth;
  const std::shared_ptr<const nn::Sequence> tokens = sequence_of(pass);
  const at::Tensor out = through_plain_blocks(
      x, depth, pass,
      [&](int64_t i, const at::Tensor& in) {
        return plain_block(i, in, c, *tokens, blocks_of(pass));
      },
      [&] {
        at::Tensor h;
        with_bucket(dit_block_buckets(depth, 0).modulation,
                    [&] { h = blocks.items.front()->first_norm(x, c); });
        return h;
      });
  return out.defined() ? final_layer.forward(out, c) : at::Tensor();  // [B, 1, N, P P out]
}

ops::BlockStack DiT::fast_stack(const at::Tensor& x, const diffusion::Pass& pass) const {
  const FastPass fast = fast_pass(x, grid_of(config()).tokens_a_frame(), pass);
  std::vector<ops::Block> stacked;
  const BlockSpan span = blocks_of(pass);
  for (const int64_t i : span) {
    stacked.push_back(blocks.items[static_cast<size_t>(i)]->fast(fast, nn::Span::kFrame));
  }
  ops::BlockStack all = stack(std::move(stacked), pass);
  all.keeps_results = true;
  std::vector<ops::LinearWeights> slab;
  for (const int64_t i : span) {
    const DiTBlockBuckets buckets = dit_block_buckets(config().transformer.depth, i);
    slab.push_back(blocks.items[static_cast<size_t>(i)]->modulation());
    if (buckets.closes_slab || i + 1 == span.end) {
      for (ops::LinearWeights& merged : ops::merge_adjacent(slab)) {
        all.modulation.push_back(std::move(merged));
        all.modulation_buckets.push_back(buckets.modulation);
      }
      slab.clear();
    }
  }
  return all;
}

at::Tensor sin_cos_position_embedding(int64_t hidden, int64_t rows, int64_t columns) {
  KINORA_CHECK(hidden % 4 == 0, kConfig, "[dit] hidden must be a multiple of 4, got ", hidden);
  at::Tensor table = at::empty({1, rows * columns, hidden}, at::kFloat);
  float* out = table.mutable_data_ptr<float>();
  const int64_t quarter = hidden / 4;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      for (const int64_t position : {column, row}) {
        for (int64_t i = 0; i < quarter; ++i) {
          const double omega =
              1.0 / std::pow(kMaxPeriod, static_cast<double>(i) / static_cast<double>(quarter));
          const double angle = static_cast<double>(position) * omega;
          out[i] = static_cast<float>(std::sin(angle));
          out[quarter + i] = static_cast<float>(std::cos(angle));
        }
        out += 2 * quarter;
      }
    }
  }
  return table;
}

}  // namespace kinora::models
