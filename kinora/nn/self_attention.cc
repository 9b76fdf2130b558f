#include "kinora/nn/self_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>

#include <vector>

#include "kinora/nn/rotary.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/token_attention.h"

// Shapes: B batch, N tokens, C hidden, H heads, D = C / H.

namespace kinora::nn {
namespace {

Init output_init(const SelfAttention::Options& options) {
  return options.zero_output ? Init::zero() : Init::xavier_uniform(options.hidden, options.hidden);
}

/// packed: [B, N, 3, H, D]; valid: bool [B, N]. Returns [B, N, C].
at::Tensor masked_attention(const at::Tensor& packed, const at::Tensor& valid) {
  const std::vector<at::Tensor> parts = packed.permute({2, 0, 3, 1, 4}).unbind(0);
  return at::scaled_dot_product_attention(parts[0], parts[1], parts[2],
                                          valid.unsqueeze(1).unsqueeze(1))
      .transpose(1, 2)
      .flatten(2);
}

}  // namespace

ops::HeadRule head_rule(const std::optional<RmsNorm>& q_norm, const std::optional<RmsNorm>& k_norm,
                        const at::Tensor& rotary) {
  ops::HeadRule rule;
  if (q_norm) {
    rule.q_weight = q_norm->weight.value.detach();
    rule.k_weight = k_norm->weight.value.detach();
    rule.q_weight_grad = q_norm->weight.grad;
    rule.k_weight_grad = k_norm->weight.grad;
    rule.epsilon = q_norm->epsilon();
  }
  if (rotary.defined()) {
    const at::Tensor pairs =
        rotary.flatten(0, -2).slice(1, 0, std::nullopt, 2);  // [P, D / 2]: each angle once
    rule.cosines = at::cos(pairs);
    rule.sines = at::sin(pairs);
  }
  return rule;
}

SelfAttention::SelfAttention(const Options& options)
    : head_size(options.hidden / options.heads),
      qkv(options.hidden, 3 * options.hidden,
          Init::xavier_uniform(options.hidden, 3 * options.hidden)),
      proj(options.hidden, options.hidden, output_init(options)),
      norm_after_rotary_(options.norm_after_rotary) {
  const Stretch heads{options.hidden, options.heads};
  qkv.set_cut({Cut::Dim::kOutputs, {heads, heads, heads}});
  proj.set_cut({Cut::Dim::kInputs, {heads}});
  add_child("qkv", qkv);
  add_child("proj", proj);
  if (options.qk_norm) {
    q_norm.emplace(head_size);
    k_norm.emplace(head_size);
    q_norm->weight.is_partial = true;
    k_norm->weight.is_partial = true;
    add_child("q_norm", *q_norm);
    add_child("k_norm", *k_norm);
  }
}

at::Tensor SelfAttention::forward(const at::Tensor& x, const at::Tensor& rotary,
                                  const at::Tensor& valid) const {
  if (kernels() != nullptr && !valid.defined()) {
    return attend_along(x.unsqueeze(2), rotary).squeeze(2);
  }
  const at::Tensor packed = project(x, rotary);
  const at::Tensor out = valid.defined() ? masked_attention(packed, valid)
                                         : ops::attention(packed.flatten(2), num_heads());
  return tapped(proj.forward(out));
}

ops::HeadRule SelfAttention::rule(const at::Tensor& rotary) const {
  ops::HeadRule rule = head_rule(q_norm, k_norm, rotary);
  rule.norm_after_rotary = norm_after_rotary_;
  return rule;
}

ops::SelfAttentionBody SelfAttention::body(int64_t length, int64_t stride,
                                           const at::Tensor& rotary) const {
  return {qkv.weights(), proj.weights(), num_heads(), length, stride, rule(rotary)};
}

at::Tensor SelfAttention::attend_along(const at::Tensor& x, const at::Tensor& rotary) const {
  at::Tensor packed = qkv.forward(x);  // [G, N, M, 3 C]
  ops::HeadRule of_heads;
  if (kernels()->has_head_rules()) {
    of_heads = rule(rotary);
  } else {
    const int64_t rows = packed.numel() / packed.size(3);
    at::Tensor angles;
    if (rotary.defined()) {
      angles = rotary.flatten(0, -2);  // [P, D]
      angles = angles.repeat({rows / angles.size(0), 1});
    }
    packed = norm_and_rotate(packed.reshape({1, rows, 3, num_heads(), -1}), angles).view_as(packed);
  }
  return proj.forward(ops::self_attention(*kernels(), packed, num_heads(), of_heads));
}

at::Tensor SelfAttention::project(const at::Tensor& x, const at::Tensor& rotary) const {
  return norm_and_rotate(qkv.forward(x).unflatten(-1, {3, num_heads(), -1}), rotary);
}

at::Tensor SelfAttention::norm_and_rotate(const at::Tensor& packed,
                                          const at::Tensor& rotary) const {
  if (!q_norm && !rotary.defined()) {
    return packed;
  }
  std::vector<at::Tensor> parts = packed.unbind(2);  // q, k, v, each [B, N, H', D]
  const auto norm = [&] {
    if (q_norm) {
      parts[0] = q_norm->forward(parts[0]);
      parts[1] = k_norm->forward(parts[1]);
    }
  };
  if (!norm_after_rotary_) {
    norm();
  }
  if (rotary.defined()) {
    const at::Tensor angles = rotary.unsqueeze(-2);  // [(B,) N, 1, D]
    parts[0] = rotated(parts[0], angles);
    parts[1] = rotated(parts[1], angles);
  }
  if (norm_after_rotary_) {
    norm();
  }
  return at::stack(parts, 2);
}

}  // namespace kinora::nn
