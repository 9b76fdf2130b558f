#include "kinora/models/text_encoders/t5_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/log.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"
#include "kinora/models/text_encoders/t5_inference.h"
#include "kinora/ops/parameter.h"

// Shapes: T rows of all texts, C width, H heads, D channels of a head.

namespace kinora::models {
namespace {

/// As T5 starts: a normal whose variance is 1 / `fan`.
nn::Init init(int64_t fan) {
  return nn::Init::normal(1.0 / std::sqrt(static_cast<double>(fan)));
}

/// linear(x) in fp32 for fp32 `x` that is far beyond fp16's range: each row is divided by a power
/// of two first, which rounds nothing.
at::Tensor in_range(const TextLinear& linear, const at::Tensor& x) {
  const at::Tensor most = x.detach().abs().amax(-1, /*keepdim=*/true).clamp_min(1.0);
  const at::Tensor power = most.log2().ceil().exp2();  // [T, 1]
  return linear.forward(x / power).to(at::kFloat) * power;
}

}  // namespace

at::Tensor t5_distance_buckets(const T5Config& config, int64_t length) {
  // In the order of transformers' operations and always on the CPU: which bucket distances at the
  // borders fall in depends on the last bit.
  const int64_t half = config.relative_attention_num_buckets / 2;
  const int64_t exact = half / 2;
  const at::Tensor distance = at::arange(1 - length, length, at::kLong);
  const at::Tensor far = distance.abs();
  const double range = std::log(static_cast<double>(config.relative_attention_max_distance) /
                                static_cast<double>(exact));
  const at::Tensor steps =
      at::log(far.clamp_min(1).to(at::kFloat) / exact) / range * (half - exact);
  const at::Tensor shared = (steps.to(at::kLong) + exact).clamp_max(half - 1);
  return at::where(far < exact, far, shared) + (distance > 0).to(at::kLong) * half;
}

T5Block::T5Block(const T5Config& config, bool has_bias)
    : attention_norm(config.d_model, config.layer_norm_epsilon),
      q(config.d_model, config.num_heads * config.d_kv, init(config.d_model * config.d_kv), false),
      k(config.d_model, config.num_heads * config.d_kv, init(config.d_model), false),
      v(config.d_model, config.num_heads * config.d_kv, init(config.d_model), false),
      o(config.num_heads * config.d_kv, config.d_model, init(config.num_heads * config.d_kv),
        false),
      mlp_norm(config.d_model, config.layer_norm_epsilon),
      wi(config.d_model, config.d_ff, init(config.d_model), false),
      wo(config.d_ff, config.d_model, init(config.d_ff), false),
      num_heads_(config.num_heads),
      activation_(config.activation) {
  add_child("layer.0.SelfAttention.q", q);
  add_child("layer.0.SelfAttention.k", k);
  add_child("layer.0.SelfAttention.v", v);
  add_child("layer.0.SelfAttention.o", o);
  if (has_bias) {
    relative_attention_bias.emplace(
        nn::Parameter{.shape = {config.relative_attention_num_buckets, config.num_heads},
                      .init = init(config.d_model),
                      .value = {},
                      .grad = {}});
    add_parameter("layer.0.SelfAttention.relative_attention_bias.weight", *relative_attention_bias);
  }
  add_child("layer.0.layer_norm", attention_norm);
  if (config.is_gated) {
    wi_1.emplace(config.d_model, config.d_ff, init(config.d_model), false);
    add_child("layer.1.DenseReluDense.wi_0", wi);
    add_child("layer.1.DenseReluDense.wi_1", *wi_1);
  } else {
    add_child("layer.1.DenseReluDense.wi", wi);
  }
  add_child("layer.1.DenseReluDense.wo", wo);
  add_child("layer.1.layer_norm", mlp_norm);
}

at::Tensor T5Block::distance_bias(const at::Tensor& buckets) const {
  const nn::Parameter& table = *relative_attention_bias;
  // embedding and not index_select, whose gradient on GPUs adds in any order.
  return at::embedding(ops::with_gradient(table.value, table.grad), buckets).t();
}

at::Tensor T5Block::forward(const at::Tensor& x, const RaggedRows& rows,
                            const at::Tensor& distance_bias) const {
  const at::Tensor normed = attention_norm.forward(x).to(q.type());
  const auto heads = [&](const TextLinear& linear) {
    return linear.forward(normed).unflatten(1, {num_heads_, -1});  // [T, H, D]
  };
  const at::Tensor attended = ragged_attention(heads(q), heads(k), heads(v), rows,
                                               {.distance_bias = distance_bias});  // [T, H * D]
  const at::Tensor middle = x + o.forward(attended);
  return tapped(middle + mlp(mlp_norm.forward(middle).to(wi.type())));
}

at::Tensor T5Block::mlp(const at::Tensor& x) const {
  at::Tensor hidden = activate(activation_, wi.forward(x));  // [T, d_ff]
  if (wo.type() != at::kHalf) {
    return wo.forward(wi_1 ? hidden * wi_1->forward(x) : hidden);
  }
  hidden = hidden.to(at::kFloat);
  return in_range(wo, wi_1 ? hidden * wi_1->forward(x) : hidden);
}

T5Encoder::T5Encoder(const T5Config& config)
    : shared{.shape = {config.vocab_size, config.d_model},
             .init = nn::Init::normal(1.0),
             .value = {},
             .grad = {}},
      final_layer_norm(config.d_model, config.layer_norm_epsilon),
      config_(config) {
  const int64_t exact = config.relative_attention_num_buckets / 4;
  KINORA_CHECK(exact >= 1 && config.relative_attention_num_buckets % 4 == 0, kConfig,
               "[t5] relative_attention_num_buckets must be a multiple of 4, got ",
               config.relative_attention_num_buckets);
  KINORA_CHECK(config.relative_attention_max_distance > exact, kConfig,
               "[t5] relative_attention_max_distance must be above ", exact,
               ", a quarter of the buckets, got ", config.relative_attention_max_distance);
  add_parameter("shared.weight", shared);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    blocks.push_back(std::make_unique<T5Block>(config, i == 0 || config.bias_in_every_block));
    blocks.back()->set_layer(i + 1);
    add_child("encoder.block." + std::to_string(i), *blocks.back());
  }
  final_layer_norm.set_layer(config.num_layers + 1);
  add_child("encoder.final_layer_norm", final_layer_norm);
}

std::string T5Encoder::block_path(int64_t block) const {
  return "encoder.block." + std::to_string(block) + ".";
}

std::vector<TextLinear*> T5Encoder::linears() {
  std::vector<TextLinear*> linears;
  for (const std::unique_ptr<T5Block>& block : blocks) {
    for (TextLinear* linear :
         {&block->q, &block->k, &block->v, &block->o, &block->wi, &block->wo}) {
      linears.push_back(linear);
    }
    if (block->wi_1) {
      linears.push_back(&*block->wi_1);
    }
  }
  return linears;
}

at::Tensor T5Encoder::states_of(const at::Tensor& x, const TextTokens& tokens,
                                const TextLayer& layer) {
  const at::Device device = x.device();
  const int64_t longest = std::ranges::max(tokens.lengths);
  const at::Tensor buckets = t5_distance_buckets(config_, longest).to(device);
  const at::ScalarType type = final_layer_norm.weight.value.scalar_type();
  at::Tensor bias;
  const auto run = [&](const auto& run_block) {
    at::Tensor result = x;
    for (int64_t i = 0; i < config_.num_layers - layer.before_last; ++i) {
      const T5Block& block = *blocks[static_cast<size_t>(i)];
      result = with_block(i, [&] {
        if (block.has_bias()) {
          bias = block.distance_bias(buckets);
        }
        return run_block(block, result);
      });
    }
    return result;
  };
  if (at::GradMode::is_enabled() || is_tapped() || !tokens.attended.empty() ||
      !T5Inference::takes(config_, longest, device, type)) {
    const RaggedRows rows(tokens.lengths, device, RaggedRows::unit_for(device), tokens.attended);
    const at::Tensor result = run(
        [&](const T5Block& block, const at::Tensor& in) { return block.forward(in, rows, bias); });
    return layer.normed ? final_layer_norm.forward(result) : result;
  }
  if (!kernels_) {
    kernels_ = std::make_unique<ops::TextKernels>();
  }
  T5Inference inference(config_, tokens.lengths, device, type, *kernels_);
  at::Tensor result = run([&](const T5Block& block, const at::Tensor& in) {
    inference.run(block, in, bias.to(at::kFloat).contiguous());
    return in;
  });
  if (layer.normed) {
    inference.finish(final_layer_norm, result);
  }
  return result;
}

TextStates T5Encoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  check(tokens, layer);
  const at::Device device = final_layer_norm.weight.value.device();
  return {.states = states_of(embed(tokens, shared, device), tokens, layer),
          .lengths = tokens.lengths,
          .pooled = {}};
}

at::Tensor T5Encoder::encode_padded(const at::Tensor& ids, const at::Tensor& valid,
                                    const at::Tensor& buckets) const {
  const RaggedRows rows = RaggedRows::padded(valid);
  at::Tensor x =
      at::embedding(ops::with_gradient(shared.value, shared.grad), ids.flatten()).to(at::kFloat);
  at::Tensor bias;
  for (const std::unique_ptr<T5Block>& block : blocks) {
    if (block->has_bias()) {
      bias = block->distance_bias(buckets);
    }
    x = block->forward(x, rows, bias);  // [B * L, C]
  }
  return final_layer_norm.forward(x).unflatten(0, {ids.size(0), ids.size(1)});
}

}  // namespace kinora::models
