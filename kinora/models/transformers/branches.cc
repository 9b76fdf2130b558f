#include "kinora/models/transformers/branches.h"

#include <utility>
#include <variant>
#include <vector>

#include "kinora/models/transformers/kept_branches.h"

// Shapes: B batch, T frames, S' tokens of a frame here, C hidden.

namespace kinora::models {
namespace {

template <typename Body>
ops::Branch branch(const FastPass& pass, ops::BranchKind kind, Body body,
                   const ops::SeamNumbers& vectors) {
  return {.body = std::move(body), .seam = vectors, .kept = pass.kept(kind)};
}

/// `function` takes and returns tokens [B, T, S', C].
template <typename Function>
ops::FunctionBody of_tokens(const FastPass& pass, Function function,
                            std::vector<at::Tensor> gradients) {
  return {[function = std::move(function), batch = pass.batch, frames = pass.frames,
           tokens = pass.tokens](const at::Tensor& rows) {
            return function(rows.view({batch, frames, tokens, rows.size(1)}))
                .reshape({-1, rows.size(1)});
          },
          std::move(gradients)};
}

}  // namespace

at::Tensor FastPass::offset(const at::Tensor& positions) const {
  return positions.select(0, 0)
      .expand({frames, tokens, positions.size(-1)})
      .reshape({-1, positions.size(-1)});
}

ops::Branch attention_branch(const FastPass& pass, const nn::SelfAttention& attention,
                             nn::Span span, const ops::SeamNumbers& vectors,
                             const at::Tensor& rotary) {
  const ops::BranchKind kind = kind_of(span);
  const bool has_kernel = !attention.has_rule(rotary) || pass.kernels.has_head_rules();
  if (pass.sequence.attends_packed() && span != nn::Span::kTime) {
    ops::SelfAttentionBody body = attention.body(pass.frames * pass.tokens, 1, {});
    body.attend = [&attention, &sequence = pass.sequence, span, rotary, batch = pass.batch,
                   frames = pass.frames, tokens = pass.tokens,
                   tokens_a_frame = pass.tokens_a_frame](const at::Tensor& packed) {
      const at::Tensor parts = packed.view({batch, frames, tokens, packed.size(1)});
      const at::Tensor out = sequence.attend_packed(attention, parts, span, tokens_a_frame, rotary);
      return out.reshape({-1, out.size(3)});
    };
    return branch(pass, kind, std::move(body), vectors);
  }
  if (!has_kernel || pass.sequence.divides_tokens()) {
    return branch(pass, kind,
                  of_tokens(
                      pass,
                      [&attention, &sequence = pass.sequence, span, rotary,
                       tokens = pass.tokens_a_frame](const at::Tensor& x) {
                        return sequence.self_attention(attention, x, span, tokens, rotary);
                      },
                      gradients_of(attention)),
                  vectors);
  }
  at::Tensor angles;
  if (rotary.defined()) {
    angles = rotary.expand({pass.frames, pass.tokens, -1});
  }
  switch (span) {
    case nn::Span::kFrame:
      return branch(pass, kind, attention.body(pass.tokens, 1, angles), vectors);
    case nn::Span::kTime:
      return branch(pass, kind, attention.body(pass.frames, pass.tokens, angles), vectors);
    case nn::Span::kClip:
      break;
  }
  return branch(pass, kind, attention.body(pass.frames * pass.tokens, 1, angles), vectors);
}

ops::Branch window_branch(const FastPass& pass, const nn::SelfAttention& attention,
                          const nn::Windows& windows, const ops::SeamNumbers& vectors,
                          const at::Tensor& rotary) {
  return branch(pass, ops::BranchKind::kTime,
                of_tokens(
                    pass,
                    [&attention, &sequence = pass.sequence, windows, rotary](const at::Tensor& x) {
                      return sequence.window_attention(attention, x, windows, rotary);
                    },
                    gradients_of(attention)),
                vectors);
}

ops::Branch token_branch(const FastPass& pass,
                         std::function<at::Tensor(const at::Tensor& tokens)> function,
                         std::vector<at::Tensor> gradients, const ops::SeamNumbers& vectors) {
  return branch(pass, ops::BranchKind::kSpace,
                of_tokens(pass, std::move(function), std::move(gradients)), vectors);
}

std::vector<at::Tensor> gradients_of(const ops::LinearWeights& linear) {
  std::vector<at::Tensor> gradients = {linear.weight_grad, linear.bias_grad};
  for (const ops::LowRankWeights& update : linear.updates) {
    gradients.insert(gradients.end(), {update.a_grad, update.b_grad});
  }
  return gradients;
}

std::vector<at::Tensor> gradients_of(const nn::SelfAttention& attention) {
  std::vector<at::Tensor> gradients = gradients_of(attention.qkv.weights());
  const std::vector<at::Tensor> of_proj = gradients_of(attention.proj.weights());
  gradients.insert(gradients.end(), of_proj.begin(), of_proj.end());
  if (attention.q_norm) {
    gradients.insert(gradients.end(),
                     {attention.q_norm->weight.grad, attention.k_norm->weight.grad});
  }
  return gradients;
}

ops::Branch text_branch(const FastPass& pass, const nn::CrossAttention& attention) {
  return branch(pass, ops::BranchKind::kText, attention.body(), {});
}

ops::Branch mlp_branch(const FastPass& pass, const nn::Mlp& mlp, const ops::SeamNumbers& vectors) {
  return branch(pass, ops::BranchKind::kMlp, mlp.body(), vectors);
}

}  // namespace kinora::models
