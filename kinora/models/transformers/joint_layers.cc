#include "kinora/models/transformers/joint_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "kinora/models/transformers/seams.h"
#include "kinora/nn/rotary.h"
#include "kinora/nn/self_attention.h"

// Shapes: B batch, L text tokens, N image tokens, C hidden, M hidden width of the MLP, H heads,
// D = C / H.

namespace kinora::models {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Of a StreamBlock: shift, scale and gate of attention, of the MLP, and of a second attention.
constexpr int64_t kSeam = 3;
constexpr int64_t kMlp = 3;
constexpr int64_t kSecond = 6;

nn::Init xavier(int64_t in_features, int64_t out_features) {
  return nn::Init::xavier_uniform(in_features, out_features);
}

/// packed: normed [B, tokens, 3, H, D]. Returns [B, 1, tokens, C].
at::Tensor attend(const at::Tensor& packed, const at::Tensor& rotary, const at::Tensor& attended) {
  Tensors parts = packed.permute({2, 0, 3, 1, 4}).unbind(0);  // [B, H, tokens, D]
  if (rotary.defined()) {
    parts[0] = nn::rotated(parts[0], rotary);
    parts[1] = nn::rotated(parts[1], rotary);
  }
  return at::scaled_dot_product_attention(
             parts[0], parts[1], parts[2],
             attended.defined() ? std::optional(attended) : std::nullopt)
      .transpose(1, 2)
      .flatten(2)
      .unsqueeze(1);
}

int64_t num_vectors(const StreamBlock::Options& options) {
  return options.ends ? 2 : kSeam * (options.has_second_attention ? 3 : 2);
}

}  // namespace

HeadNorms::HeadNorms(const TransformerConfig& config) {
  if (config.qk_norm == ops::Switch::kOn) {
    q_norm.emplace(config.hidden / config.heads);
    k_norm.emplace(config.hidden / config.heads);
    add_child("q_norm", *q_norm);
    add_child("k_norm", *k_norm);
  }
}

at::Tensor HeadNorms::forward(const at::Tensor& packed) const {
  if (!q_norm) {
    return packed;
  }
  const Tensors parts = packed.unbind(2);
  return at::stack({q_norm->forward(parts[0]), k_norm->forward(parts[1]), parts[2]}, 2);
}

ops::HeadRule HeadNorms::rule(const FastJoint& joint, int64_t first, int64_t count) const {
  ops::HeadRule rule = nn::head_rule(q_norm, k_norm, {});
  if (joint.rotation.cosines.defined()) {
    rule.cosines = joint.rotation.cosines.narrow(0, first, count);
    rule.sines = joint.rotation.sines.narrow(0, first, count);
  }
  return rule;
}

StreamAttention::StreamAttention(const TransformerConfig& config, bool ends)
    : num_heads_(config.heads),
      qkv(config.hidden, 3 * config.hidden, xavier(config.hidden, 3 * config.hidden)),
      norms_(config) {
  add_child("qkv", qkv);
  add_child("", norms_);
  if (!ends) {
    add_child("proj",
              proj.emplace(config.hidden, config.hidden, xavier(config.hidden, config.hidden)));
  }
}

at::Tensor StreamAttention::project(const at::Tensor& x) const {
  return norms_.forward(qkv.forward(x).squeeze(1).unflatten(-1, {3, num_heads_, -1}));
}

at::Tensor StreamAttention::finish(const at::Tensor& attended) const {
  return tapped(proj->forward(attended));
}

ops::JointAttentionBody::Part StreamAttention::part(const FastJoint& joint, int64_t first,
                                                    int64_t count) const {
  return {qkv.weights(), proj ? proj->weights() : ops::LinearWeights(),
          norms_.rule(joint, first, count)};
}

ops::SelfAttentionBody StreamAttention::body(const FastJoint& joint) const {
  return {.qkv = qkv.weights(),
          .proj = proj->weights(),
          .heads = num_heads_,
          .length = joint.image_tokens,
          .rule = norms_.rule({}, 0, joint.image_tokens)};
}

std::vector<nn::Linear*> StreamAttention::linears() {
  return proj ? std::vector<nn::Linear*>{&qkv, &*proj} : std::vector<nn::Linear*>{&qkv};
}

StreamBlock::StreamBlock(const TransformerConfig& config, const Options& options)
    : adaLN_modulation(config.hidden, num_vectors(options), false), attn(config, options.ends) {
  add_child("adaLN_modulation", adaLN_modulation);
  add_child("attn", attn);
  if (options.has_second_attention) {
    add_child("attn2", attn2.emplace(config, false));
  }
  if (!options.ends) {
    add_child("mlp", mlp.emplace(config.hidden, config.mlp_hidden(), config.hidden));
  }
}

Tensors StreamBlock::modulation(const at::Tensor& condition) const {
  return adaLN_modulation.forward(condition);
}

at::Tensor StreamBlock::project(const at::Tensor& x, const Tensors& m) const {
  return attn.project(modulated_norm(x, m[0], m[1]));
}

at::Tensor StreamBlock::finish(const at::Tensor& x, const Tensors& m,
                               const at::Tensor& attended) const {
  at::Tensor y = gated_sum(x, m[2], attn.finish(attended));
  if (attn2) {
    const at::Tensor packed = attn2->project(modulated_norm(x, m[kSecond], m[kSecond + 1]));
    y = gated_sum(y, m[kSecond + 2], attn2->finish(attend(packed, {}, {})));
  }
  return tapped(gated_sum(y, m[kMlp + 2], mlp->forward(modulated_norm(y, m[kMlp], m[kMlp + 1]))));
}

StreamBlock::Fast StreamBlock::fast(const FastJoint& joint, int64_t stream,
                                    int64_t first_vector) const {
  const auto seam = [first_vector](int64_t first) {
    const int64_t shift = first_vector + first;
    return ops::SeamNumbers{.shift = shift, .scale = shift + 1, .gate = shift + 2};
  };
  const int64_t first = stream == 0 ? 0 : joint.image_tokens;
  const int64_t count = stream == 0 ? joint.image_tokens : joint.text_tokens;
  Fast fast{.attention = attn.part(joint, first, count), .seam = seam(0), .num_vectors = 2};
  if (ends()) {
    fast.seam.gate = -1;
    return fast;
  }
  fast.mlp = ops::Branch{.body = mlp->body(), .seam = seam(kMlp), .stream = stream};
  fast.num_vectors = 2 * kSeam;
  if (attn2) {
    fast.beside = ops::Branch{
        .body = attn2->body(joint), .seam = seam(kSecond), .stream = stream, .is_beside = true};
    fast.num_vectors += kSeam;
  }
  return fast;
}

std::vector<nn::Linear*> StreamBlock::linears() {
  std::vector<nn::Linear*> all = attn.linears();
  if (attn2) {
    const std::vector<nn::Linear*> second = attn2->linears();
    all.insert(all.end(), second.begin(), second.end());
  }
  if (mlp) {
    all.insert(all.end(), {&mlp->fc1, &mlp->fc2});
  }
  return all;
}

JointBlock::JointBlock(const TransformerConfig& config, int64_t number)
    : num_heads_(config.heads),
      context_block(config, {.ends = number + 1 == config.depth && config.parallel_depth == 0}),
      x_block(config,
              {.has_second_attention = std::ranges::count(config.second_attention, number) > 0}) {
  add_child("context_block", context_block);
  add_child("x_block", x_block);
}

Tensors JointBlock::forward(const Tensors& streams, const JointInputs& inputs) const {
  const at::Tensor& text = streams[0];
  const at::Tensor& image = streams[1];
  const Tensors m_text = context_block.modulation(inputs.condition);
  const Tensors m_image = x_block.modulation(inputs.condition);
  const Tensors attended =
      attend(at::cat({context_block.project(text, m_text), x_block.project(image, m_image)}, 1),
             inputs.rotary, inputs.attended)
          .split_with_sizes({text.size(2), image.size(2)}, 2);
  const at::Tensor x = x_block.finish(image, m_image, attended[1]);
  return context_block.ends() ? Tensors{x}
                              : Tensors{context_block.finish(text, m_text, attended[0]), x};
}

ops::Block JointBlock::fast(const FastJoint& joint) const {
  const StreamBlock::Fast image = x_block.fast(joint, 0, 0);
  const StreamBlock::Fast text = context_block.fast(joint, 1, image.num_vectors);
  ops::Block block{.branches = {}, .num_vectors = image.num_vectors + text.num_vectors};
  if (image.beside) {
    block.branches.push_back(*image.beside);
  }
  block.branches.push_back(
      {.body = ops::JointAttentionBody{.parts = {image.attention, text.attention},
                                       .heads = num_heads_,
                                       .key_lengths = joint.key_lengths},
       .seam = image.seam,
       .second_seam = text.seam});
  block.branches.push_back(*image.mlp);
  if (text.mlp) {
    block.branches.push_back(*text.mlp);
  }
  return block;
}

std::vector<ops::LinearWeights> JointBlock::modulation() const {
  return {x_block.slab(), context_block.slab()};
}

std::vector<nn::Linear*> JointBlock::linears() {
  std::vector<nn::Linear*> all = x_block.linears();
  const std::vector<nn::Linear*> text = context_block.linears();
  all.insert(all.end(), text.begin(), text.end());
  return all;
}

ParallelBlock::ParallelBlock(const TransformerConfig& config)
    : num_heads_(config.heads),
      modulation(config.hidden, kSeam, false),
      linear1(config.hidden, 3 * config.hidden + config.mlp_hidden(),
              xavier(config.hidden, 3 * config.hidden + config.mlp_hidden())),
      linear2(config.hidden + config.mlp_hidden(), config.hidden,
              xavier(config.hidden + config.mlp_hidden(), config.hidden)),
      norms_(config) {
  linear1.set_parts(nn::Linear::Dim::kOutputs, {3 * config.hidden, config.mlp_hidden()});
  linear2.set_parts(nn::Linear::Dim::kInputs, {config.hidden, config.mlp_hidden()});
  add_child("modulation", modulation);
  add_child("linear1", linear1);
  add_child("linear2", linear2);
  add_child("", norms_);
}

at::Tensor ParallelBlock::forward(const at::Tensor& x, const JointInputs& inputs) const {
  const Tensors m = modulation.forward(inputs.condition);
  const int64_t hidden = x.size(-1);
  const at::Tensor both = linear1.forward(modulated_norm(x, m[0], m[1]));
  const at::Tensor packed =
      norms_.forward(both.narrow(-1, 0, 3 * hidden).squeeze(1).unflatten(-1, {3, num_heads_, -1}));
  const at::Tensor mlp = at::gelu(both.narrow(-1, 3 * hidden, both.size(-1) - 3 * hidden), "tanh");
  const at::Tensor attended = attend(packed, inputs.rotary, inputs.attended);
  return tapped(gated_sum(x, m[2], linear2.forward(at::cat({attended, mlp}, -1))));
}

ops::Block ParallelBlock::fast(const FastJoint& joint) const {
  const std::vector<ops::LinearWeights> first = linear1.parts();
  const std::vector<ops::LinearWeights> second = linear2.parts();
  const int64_t tokens = joint.image_tokens + joint.text_tokens;
  const ops::ParallelBody body{.attention = {.qkv = first[0],
                                             .proj = second[0],
                                             .heads = num_heads_,
                                             .length = tokens,
                                             .rule = norms_.rule(joint, 0, tokens),
                                             .key_lengths = joint.key_lengths},
                               .mlp = {.fc1 = first[1], .fc2 = second[1]}};
  return {.branches = {{.body = body, .seam = {.shift = 0, .scale = 1, .gate = 2}}},
          .num_vectors = kSeam};
}

}  // namespace kinora::models
