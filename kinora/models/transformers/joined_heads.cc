#include "kinora/models/transformers/joined_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>

#include <utility>
#include <vector>

#include "kinora/comm/differentiable.h"
#include "kinora/models/transformers/video_layers.h"
#include "kinora/nn/rotary.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

/// Which ranks may divide.
nn::Stretch heads_of(const TransformerConfig& config) {
  return {config.hidden, config.heads};
}

/// [B, tokens, C'] -> [B, H', tokens, D].
at::Tensor in_heads(const at::Tensor& x, int64_t head_size) {
  return x.unflatten(-1, {-1, head_size}).transpose(1, 2);
}

/// q: [B, H', N, D]; kv: [B, L, 2 C'], its keys behind `norm`. lengths: as JoinedTextAttention's.
/// Returns [B, N, C'].
at::Tensor attend_to(const at::Tensor& q, const at::Tensor& kv, const JoinedHeadNorm& norm,
                     const comm::Group& group, const at::Tensor& lengths) {
  const std::vector<at::Tensor> parts = kv.chunk(2, -1);
  const at::Tensor k = in_heads(norm.forward(parts[0], group), q.size(3));
  const at::Tensor v = in_heads(parts[1], q.size(3));
  if (!lengths.defined()) {
    return at::scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2);
  }
  const at::Tensor column = lengths.unsqueeze(1);
  const at::Tensor is_empty = column == 0;  // [B, 1]
  // What kernels make of a row without any token differs: it attends to all, and is cleared below.
  const at::Tensor attended =
      (at::arange(k.size(2), lengths.options()) < column).logical_or(is_empty);
  return at::scaled_dot_product_attention(q, k, v, attended.unsqueeze(1).unsqueeze(1))
      .transpose(1, 2)
      .flatten(2)
      .masked_fill(is_empty.unsqueeze(1), 0.0);
}

}  // namespace

JoinedHeadNorm::JoinedHeadNorm(int64_t hidden, double epsilon) : RmsNorm(hidden, epsilon) {
  weight.is_partial = true;
}

at::Tensor JoinedHeadNorm::forward(const at::Tensor& x, const comm::Group& group) const {
  if (group.size() == 1) {
    return RmsNorm::forward(x);
  }
  const at::Tensor wide = x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
  // Each rank goes on with it in its own way.
  const at::Tensor squares =
      comm::shared(group, comm::sum(group, wide.square().sum(-1, /*keepdim=*/true)));
  const at::Tensor scale =
      at::rsqrt(squares / static_cast<double>(x.size(-1) * group.size()) + epsilon());
  const at::Tensor own_weight = ops::with_gradient(weight.value, weight.grad)
                                    .narrow(0, group.rank() * x.size(-1), x.size(-1));
  return tapped((wide * scale * own_weight).to(x.scalar_type()));
}

JoinedHeadNorms::JoinedHeadNorms(int64_t hidden, double epsilon)
    : q_norm(hidden, epsilon), k_norm(hidden, epsilon) {
  add_child("q_norm", q_norm);
  add_child("k_norm", k_norm);
}

ops::HeadRule JoinedHeadNorms::rule(const comm::Group& group, ops::HeadRule rotation) const {
  ops::HeadRule rule = std::move(rotation);
  rule.q_weight = q_norm.weight.value.detach();
  rule.k_weight = k_norm.weight.value.detach();
  rule.q_weight_grad = q_norm.weight.grad;
  rule.k_weight_grad = k_norm.weight.grad;
  rule.epsilon = q_norm.epsilon();
  if (group.size() > 1) {
    rule.ranks = {group.rank(), group.size(),
                  [group](const at::Tensor& numbers) { group.all_reduce(numbers); }};
  }
  return rule;
}

JoinedSelfAttention::JoinedSelfAttention(const TransformerConfig& config, double epsilon)
    : head_size_(config.hidden / config.heads),
      norms_(config.hidden, epsilon),
      qkv(projection(config.hidden, 3)),
      proj(projection(config.hidden, 1)) {
  const nn::Stretch heads = heads_of(config);
  qkv.set_cut({nn::Cut::Dim::kOutputs, {heads, heads, heads}});
  proj.set_cut({nn::Cut::Dim::kInputs, {heads}});
  add_child("qkv", qkv);
  add_child("proj", proj);
  add_child("", norms_);
}

at::Tensor JoinedSelfAttention::attend(ops::BlockKernels* kernels, const at::Tensor& projected,
                                       const ClipTokens& tokens,
                                       const nn::Sequence& sequence) const {
  const std::vector<at::Tensor> parts = projected.chunk(3, -1);
  const at::Tensor& rotary = tokens.rotary;
  const int64_t columns = parts[0].size(-1);
  const at::Tensor angles =
      rotary.size(-1) == head_size_
          ? rotary.unsqueeze(-2)
          : rotary.narrow(-1, qkv.group().rank() * columns, columns).unflatten(-1, {1, columns});
  const at::Tensor normed = at::stack({norms_.q_norm.forward(parts[0], qkv.group()),
                                       norms_.k_norm.forward(parts[1], qkv.group())})
                                .unflatten(-1, {-1, angles.size(-1)});
  const at::Tensor turned = nn::rotated(normed, angles).flatten(-2);
  const at::Tensor packed = at::stack({turned[0], turned[1], parts[2]}, 3)
                                .unflatten(-1, {-1, head_size_});  // [B, T, S', 3, H', D]
  const int64_t frames = projected.size(1);
  const std::vector<at::Tensor> streams =
      sequence.divides_tokens() ? packed.unbind(1) : std::vector<at::Tensor>{packed.flatten(1, 2)};
  const std::vector<int64_t> counts(streams.size(),
                                    frames * tokens.tokens_a_frame / std::ssize(streams));
  const std::vector<at::Tensor> attended =
      sequence.stream_attention(kernels, streams, counts, /*text_lengths=*/{}, tokens.blocks);
  return at::stack(attended, 1).view(parts[0].sizes());
}

at::Tensor JoinedSelfAttention::forward(const at::Tensor& x, const ClipTokens& tokens,
                                        const nn::Sequence& sequence) const {
  return tapped(proj.forward(attend(nullptr, qkv.forward(x), tokens, sequence)));
}

ops::Branch JoinedSelfAttention::fast(const FastPass& pass, const ClipTokens& tokens,
                                      const ops::HeadRule& rotation,
                                      const ops::SeamNumbers& vectors) const {
  const bool has_kernel = pass.kernels.has_head_rules() && !pass.sequence.divides_tokens();
  ops::SelfAttentionBody body{
      .qkv = qkv.weights(),
      .proj = proj.weights(),
      .heads = qkv.weight.shape.front() / (3 * head_size_),
      .length = pass.frames * pass.tokens,
      .rule = norms_.rule(qkv.group(), has_kernel ? rotation : ops::HeadRule()),
      .keys = {.blocks = tokens.blocks}};
  if (has_kernel && rotation.cosines.size(1) != head_size_ / 2) {  // of all heads: those of here
    const int64_t own = body.heads * head_size_ / 2;
    for (at::Tensor* table : {&body.rule.cosines, &body.rule.sines}) {
      *table = table->narrow(1, qkv.group().rank() * own, own);
    }
  }
  if (!has_kernel) {
    body.attend = [this, &kernels = pass.kernels, &sequence = pass.sequence, tokens,
                   batch = pass.batch, frames = pass.frames,
                   count = pass.tokens](const at::Tensor& rows) {
      const at::Tensor projected = rows.view({batch, frames, count, rows.size(1)});
      return attend(&kernels, projected, tokens, sequence).flatten(0, 2);
    };
  }
  return {.body = std::move(body), .seam = vectors, .kept = pass.kept(ops::BranchKind::kSpace)};
}

JoinedImageKeys::JoinedImageKeys(const TransformerConfig& config, double epsilon)
    : image_kv_linear(projection(config.hidden, 2)), image_k_norm(config.hidden, epsilon) {
  image_kv_linear.set_cut({nn::Cut::Dim::kOutputs, {heads_of(config), heads_of(config)}});
  add_child("image_kv_linear", image_kv_linear);
  add_child("image_k_norm", image_k_norm);
}

JoinedTextAttention::JoinedTextAttention(const TransformerConfig& config, double epsilon)
    : head_size_(config.hidden / config.heads),
      norms_(config.hidden, epsilon),
      q_linear(projection(config.hidden, 1)),
      kv_linear(projection(config.hidden, 2)),
      proj(projection(config.hidden, 1)) {
  const nn::Stretch heads = heads_of(config);
  q_linear.set_cut({nn::Cut::Dim::kOutputs, {heads}});
  kv_linear.set_cut({nn::Cut::Dim::kOutputs, {heads, heads}});
  proj.set_cut({nn::Cut::Dim::kInputs, {heads}});
  add_child("q_linear", q_linear);
  add_child("kv_linear", kv_linear);
  add_child("proj", proj);
  add_child("", norms_);
  if (config.image_channels > 0) {
    images_.emplace(config, epsilon);
    add_child("", *images_);
  }
}

at::Tensor JoinedTextAttention::forward(const at::Tensor& x, const at::Tensor& context,
                                        int64_t num_images, const at::Tensor& lengths) const {
  const comm::Group& group = q_linear.group();
  const at::Tensor q =
      in_heads(norms_.q_norm.forward(q_linear.forward(x.flatten(1, 2)), group), head_size_);
  const at::Tensor text = context.narrow(1, num_images, context.size(1) - num_images);
  at::Tensor said = attend_to(q, kv_linear.forward(text), norms_.k_norm, group, lengths);
  if (images_) {
    said = said + attend_to(q, images_->image_kv_linear.forward(context.narrow(1, 0, num_images)),
                            images_->image_k_norm, group, {});
  }
  return tapped(proj.forward(said).view_as(x));
}

ops::CrossAttentionBody JoinedTextAttention::body(int64_t num_images) const {
  const comm::Group& group = q_linear.group();
  ops::CrossAttentionBody body{.q = q_linear.weights(),
                               .kv = kv_linear.weights(),
                               .proj = proj.weights(),
                               .heads = q_linear.weight.shape.front() / head_size_,
                               .rule = norms_.rule(group)};
  if (images_) {
    body.first = {.count = num_images,
                  .kv = images_->image_kv_linear.weights(),
                  .k_weight = images_->image_k_norm.weight.value.detach(),
                  .k_weight_grad = images_->image_k_norm.weight.grad};
  }
  return body;
}

std::vector<nn::Linear*> JoinedTextAttention::linears() {
  if (images_) {
    return {&q_linear, &kv_linear, &images_->image_kv_linear, &proj};
  }
  return {&q_linear, &kv_linear, &proj};
}

std::vector<nn::Linear*> joined_linears(JoinedSelfAttention& attention, JoinedTextAttention& text,
                                        nn::Mlp& mlp) {
  std::vector<nn::Linear*> all = {&attention.qkv, &attention.proj};
  for (nn::Linear* linear : text.linears()) {
    all.push_back(linear);
  }
  all.insert(all.end(), {&mlp.fc1, &mlp.fc2});
  return all;
}

}  // namespace kinora::models
