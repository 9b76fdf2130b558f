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

}  // namespace kinora::parallel
