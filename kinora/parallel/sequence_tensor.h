#pragma once

#include "kinora/parallel/sequence_base.h"

namespace kinora::parallel {

/// FastSeq (OpenDiT 2024): an all-gather of tokens, which travel around a ring behind the products
/// with the rows of some heads of the packed weight, and one all-to-all back after attention.
/// Backward gathers again, so that nothing of other ranks is kept. P divides the heads.
class FastSeqSequence : public ShardedSequence {
 public:
  using ShardedSequence::ShardedSequence;

 protected:
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  nn::Span span, int64_t tokens_a_frame,
                                  const at::Tensor& rotary) const override;
};

/// Tensor with sequence parallelism (Korthikanti et al. 2022): between norms, which work on the own
/// tokens, a rank computes with some heads of self-attention, in time too, and some columns of the
/// MLP, of all tokens; they are gathered before and summed and scattered after, in rings behind the
/// products. P divides heads and the MLP's hidden width.
///
/// It divides work and activations, not weights: every rank has all of them, or its ZeRO slice, and
/// the gradients are partial sums as everywhere else. Cross-attention is local: its tokens are
/// independent of each other.
class MegatronSequence : public ShardedSequence {
 public:
  using ShardedSequence::ShardedSequence;

  [[nodiscard]] bool divides_mlp() const override { return true; }
  [[nodiscard]] at::Tensor mlp(const nn::Mlp& mlp, const at::Tensor& x) const override;

 protected:
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  nn::Span span, int64_t tokens_a_frame,
                                  const at::Tensor& rotary) const override;
  [[nodiscard]] bool divides_time() const override { return true; }
};

}  // namespace kinora::parallel
