#pragma once

#include "kinora/parallel/sequence_base.h"

namespace kinora::parallel {

/// DSP (Zhao et al. 2024, "DSP: dynamic sequence parallelism for multi-dimensional transformers"):
/// for attention inside of frames an all-to-all changes from parts of all frames to all tokens of
/// some of the B T frames; another one changes back. Attention in time is local. Does not divide
/// heads; images (T = 1) are divided by the batch.
///
/// kConfig for attention over whole clips, which has no dim that tokens do not mix along.
class DspSequence : public ShardedSequence {
 public:
  using ShardedSequence::ShardedSequence;

 protected:
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  nn::Span span, int64_t tokens_a_frame,
                                  const at::Tensor& rotary) const override;
};

}  // namespace kinora::parallel
