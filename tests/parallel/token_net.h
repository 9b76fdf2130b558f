#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/nn/sequence.h"
#include "kinora/parallel/sequence.h"
#include "tests/ops/tensors.h"
#include "tests/parallel/plans.h"

/// A small model with every place that sequence parallelism has to do with.
namespace kinora::parallel {

inline constexpr int64_t kHidden = 32;
inline constexpr int64_t kHeads = 4;

struct TokenCase {
  nn::Span span = nn::Span::kFrame;
  int64_t batch = 2;
  int64_t num_frames = 3;
  int64_t tokens_a_frame = 7;
  bool rotary = true;
};

/// Each twice, as rotary embeddings have them.
inline at::Tensor angles_of(const std::vector<int64_t>& shape, int64_t number, at::Device device) {
  return ops::normal(shape, number).repeat_interleave(2, -1).to(device);
}

struct TokenNet : nn::Module {
  explicit TokenNet(bool qk_norm, at::Device device = at::kCPU, at::ScalarType type = at::kFloat)
      : in_space({.hidden = kHidden, .heads = kHeads, .qk_norm = qk_norm}),
        in_time(
            {.hidden = kHidden, .heads = kHeads, .qk_norm = qk_norm, .norm_after_rotary = true}),
        to_text({.hidden = kHidden, .heads = kHeads}),
        mlp(kHidden, 2 * kHidden, kHidden) {
    add_child("in_space", in_space);
    add_child("in_time", in_time);
    add_child("to_text", to_text);
    add_child("mlp", mlp);
    int64_t number = 0;
    for (const auto& [path, parameter] : named_parameters()) {
      parameter->value = (ops::normal(parameter->shape, ++number) * 0.15)
                             .to(device, type)
                             .detach()
                             .requires_grad_();
      parameter->grad = at::zeros(parameter->shape, at::device(device));
    }
  }

  /// part: what entered of [B, T, S, C]. Returns all tokens.
  [[nodiscard]] at::Tensor forward(const nn::Sequence& sequence, const TokenCase& c,
                                   const at::Tensor& part) const {
    const int64_t tokens = c.tokens_a_frame;
    const int64_t head = kHidden / kHeads;
    at::Tensor angles;
    at::Tensor in_time_only;
    if (c.rotary) {
      angles = angles_of({c.num_frames, tokens, head / 2}, 50, part.device());
      in_time_only = angles_of({c.num_frames, 1, head / 2}, 51, part.device());
    }
    at::Tensor x = part;
    x = x + sequence.self_attention(in_space, x, c.span, tokens, angles);
    x = x + sequence.self_attention(in_time, x, nn::Span::kTime, tokens, in_time_only);
    const at::Tensor text = ops::normal({c.batch, 6, kHidden}, 52).to(part.device());
    const at::Tensor lengths = at::zeros({c.batch}, text.options().dtype(at::kLong)) + 4;
    x = x + sequence.cross_attention(to_text, x, text, lengths);
    x = x + sequence.mlp(mlp, x);
    return sequence.leave(x, tokens);
  }

  nn::SelfAttention in_space;
  nn::SelfAttention in_time;
  nn::CrossAttention to_text;
  nn::Mlp mlp;
};

inline at::Tensor tokens_of(const TokenCase& c) {
  return ops::normal({c.batch, c.num_frames, c.tokens_a_frame, kHidden}, 60);
}

}  // namespace kinora::parallel
