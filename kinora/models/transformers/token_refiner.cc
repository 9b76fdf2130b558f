#include "kinora/models/transformers/token_refiner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kinora/models/transformers/seams.h"

// Shapes: B batch, L text tokens, C hidden, H heads, D = C / H.

namespace kinora::models {
namespace {

constexpr double kEpsilon = 1e-6;
constexpr int64_t kGates = 2;
/// As published, whatever the MLPs of the other blocks are.
constexpr int64_t kMlpRatio = 4;

TransformerConfig without_head_norms(TransformerConfig config) {
  config.qk_norm = ops::Switch::kOff;
  return config;
}

/// Of few tokens: composed, so that gradients are the same in every run on a GPU, too.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& is_read) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor scores =
      at::matmul(q * scale, k.transpose(-2, -1))
          .masked_fill(is_read.logical_not(), -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), v);
}

}  // namespace

RefinerBlock::RefinerBlock(const TransformerConfig& config)
    : norm1(config.hidden, kEpsilon),
      attn(without_head_norms(config), /*ends=*/false),
      norm2(config.hidden, kEpsilon),
      mlp(config.hidden, kMlpRatio * config.hidden, config.hidden),
      adaLN_modulation(config.hidden, kGates, false) {
  add_child("norm1", norm1);
  add_child("attn", attn);
  add_child("norm2", norm2);
  add_child("mlp", mlp);
  add_child("adaLN_modulation", adaLN_modulation);
}

at::Tensor RefinerBlock::forward(const at::Tensor& x, const at::Tensor& condition,
                                 const at::Tensor& is_read) const {
  const std::vector<at::Tensor> gates = adaLN_modulation.forward(condition);
  const std::vector<at::Tensor> parts =
      attn.project(norm1.forward(x)).to(at::kFloat).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor attended = attend(parts[0], parts[1], parts[2], is_read);  // [B, H, L, D]
  const at::Tensor y =
      gated_sum(x, gates[0], attn.finish(attended.transpose(1, 2).flatten(2).unsqueeze(1)));
  return tapped(
      gated_sum(y, gates[1], mlp.fc2.forward(at::silu(mlp.fc1.forward(norm2.forward(y))))));
}

TokenRefiner::TokenRefiner(const ModelConfig& config)
    : t_embedder(config.transformer.hidden, config.time_scale),
      y_embedder(config.text_channels, config.transformer.hidden),
      proj_in(config.text_channels, config.transformer.hidden,
              nn::Init::xavier_uniform(config.text_channels, config.transformer.hidden)),
      depth_(config.transformer.refiner_depth),
      blocks(config.transformer, depth_, 0) {
  proj_in.set_cut(nn::Cut::of_whole_inputs(config.text_channels));
  add_child("t_embedder", t_embedder);
  add_child("y_embedder", y_embedder);
  add_child("proj_in", proj_in);
  add_child("blocks", blocks);
  set_layer(0);  // it lies before the model's blocks
}

at::Tensor TokenRefiner::forward(const at::Tensor& text, const at::Tensor& lengths,
                                 const at::Tensor& t) const {
  // A caption of no token reads its first place, which nobody else does.
  const at::Tensor count = lengths.clamp_min(1).unsqueeze(1);                      // [B, 1]
  const at::Tensor is_read = at::arange(text.size(1), lengths.options()) < count;  // [B, L]
  const at::Tensor mean = at::where(is_read.unsqueeze(2), text.to(at::kFloat), 0.0).sum(1) / count;
  const at::Tensor condition = t_embedder.forward(t) + y_embedder.forward(mean);
  at::Tensor x = proj_in.forward(text).to(at::kFloat).unsqueeze(1);  // [B, 1, L, C]
  for (int64_t i = 0; i < depth_; ++i) {
    x = blocks[i].forward(x, condition, is_read.unsqueeze(1).unsqueeze(1));
  }
  return tapped(x.squeeze(1));
}

double TokenRefiner::macs(const ModelConfig& config) {
  const auto length = static_cast<double>(config.text_tokens);
  const auto hidden = static_cast<double>(config.transformer.hidden);
  const double square = hidden * hidden;
  const double block = length * ((4 + 2 * kMlpRatio) * square + 2 * length * hidden) + 2 * square;
  return static_cast<double>(config.transformer.refiner_depth) * block + 2 * square +
         (256 + static_cast<double>(config.text_channels)) * hidden;
}

}  // namespace kinora::models
