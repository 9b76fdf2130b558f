#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/diffusion/step_cache.h"
#include "kinora/nn/cross_attention.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/self_attention.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/block_stack.h"

/// The parts of transformers as branches of the fast path: those that nn::Sequence does not divide
/// by their kernels, the others as functions.
namespace kinora::models {

/// A pass through blocks, wherever its tokens [B, T, S', C] lie.
struct FastPass {
  ops::BlockKernels& kernels;
  const nn::Sequence& sequence;
  diffusion::StepCache* cache = nullptr;  ///< of the pass; null: none
  int64_t batch = 0;
  int64_t frames = 0;
  int64_t tokens = 0;          ///< S', here
  int64_t tokens_a_frame = 0;  ///< S

  /// fp32 [1 or B, T or 1, S' or 1, C] as an offset of every token: [T S', C].
  [[nodiscard]] at::Tensor offset(const at::Tensor& positions) const;
  /// ops::Branch::kept of the next branch, in order of use.
  [[nodiscard]] ops::KeptResult* kept(ops::BranchKind kind) const {
    return cache == nullptr ? nullptr : cache->next(kind);
  }
};

/// rotary: as nn::Sequence::self_attention's.
[[nodiscard]] ops::Branch attention_branch(const FastPass& pass, const nn::SelfAttention& attention,
                                           nn::Span span, const ops::SeamNumbers& vectors,
                                           const at::Tensor& rotary = {});
/// rotary: as nn::Sequence::window_attention's.
[[nodiscard]] ops::Branch window_branch(const FastPass& pass, const nn::SelfAttention& attention,
                                        const nn::Windows& windows, const ops::SeamNumbers& vectors,
                                        const at::Tensor& rotary);
/// Attention by anything else, a pure function that takes and returns tokens [B, T, S', C].
/// gradients: what its backward adds to.
[[nodiscard]] ops::Branch token_branch(const FastPass& pass,
                                       std::function<at::Tensor(const at::Tensor& tokens)> function,
                                       std::vector<at::Tensor> gradients,
                                       const ops::SeamNumbers& vectors);
/// What the backward of such a function adds to that uses a linear, or `attention`.
[[nodiscard]] std::vector<at::Tensor> gradients_of(const ops::LinearWeights& linear);
[[nodiscard]] std::vector<at::Tensor> gradients_of(const nn::SelfAttention& attention);
/// Neither normed nor gated.
[[nodiscard]] ops::Branch text_branch(const FastPass& pass, const nn::CrossAttention& attention);
[[nodiscard]] ops::Branch mlp_branch(const FastPass& pass, const nn::Mlp& mlp,
                                     const ops::SeamNumbers& vectors);

}  // namespace kinora::models
