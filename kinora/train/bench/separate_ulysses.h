#pragma once

#include "kinora/parallel/sequence_base.h"

namespace kinora::train {

/// A baseline for benchmarks: DeepSpeed Ulysses as it is published (Jacobs et al. 2023), with an
/// all-to-all each for q, k, v and the result around every attention, in time too. The ranks divide
/// the heads.
class SeparateUlysses : public parallel::ShardedSequence {
 public:
  using ShardedSequence::ShardedSequence;

 protected:
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  nn::Span span, int64_t tokens_a_frame,
                                  const at::Tensor& rotary) const override;
  [[nodiscard]] bool divides_time() const override { return true; }
};

}  // namespace kinora::train
