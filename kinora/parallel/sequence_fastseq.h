#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/parallel/sequence_base.h"

namespace kinora::parallel {

/// FastSeq (OpenDiT 2024): an all-gather of tokens, which travel around a ring behind the products
/// with the rows of some heads of the packed weight, and one all-to-all back after attention.
/// Backward gathers again, so that nothing of other ranks is kept. P divides the heads.
class FastSeqSequence : public ShardedSequence {
 public:
  using ShardedSequence::ShardedSequence;

  [[nodiscard]] bool makes_streams() const override { return true; }
  [[nodiscard]] std::vector<at::Tensor> unmade_attention(
      ops::BlockKernels* kernels, const std::vector<nn::UnmadeStream>& streams,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const override;

 protected:
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  nn::Span span, int64_t tokens_a_frame,
                                  const at::Tensor& rotary) const override;

 private:
  /// Of all tokens of a part x [B, T, s, C] what the own heads' rows of `qkv` make: [B, T, S, 3,
  /// H', D].
  [[nodiscard]] at::Tensor own_heads(const at::Tensor& x, const ops::LinearWeights& qkv,
                                     int64_t num_heads, int64_t tokens_a_frame) const;
  /// Attention's [B, T, S, H' D] back: [B, T, s, H D].
  [[nodiscard]] at::Tensor back(const at::Tensor& out, int64_t part_length) const;
};

}  // namespace kinora::parallel
