#pragma once

#include "kinora/parallel/ring.h"
#include "kinora/parallel/sequence_base.h"

namespace kinora::parallel {

/// USP (Fang and Zhao 2024, "USP: a unified sequence parallelism approach for long context
/// generative AI"): one all-to-all of the packed projections gives each of U neighbours all of
/// their tokens for 1 / U of the heads, keys and values of which then go around rings of those who
/// have the same heads; another all-to-all brings the result back.
///
/// Ulysses (Jacobs et al. 2023, "DeepSpeed Ulysses") is what remains without rings, ring attention
/// what remains without all-to-all. U divides the heads.
class UspSequence : public ShardedSequence {
 public:
  /// Group rank = rings' index * U + rank among the U neighbours.
  UspSequence(comm::Group group, comm::Group neighbours, Rings rings);

  [[nodiscard]] bool attends_packed() const override { return true; }

 protected:
  [[nodiscard]] at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                  nn::Span span, int64_t tokens_a_frame,
                                  const at::Tensor& rotary) const override;
  [[nodiscard]] at::Tensor attend_own(const nn::SelfAttention& attention, const at::Tensor& packed,
                                      nn::Span span, int64_t tokens_a_frame,
                                      const at::Tensor& rotary) const override;
  /// Rings want streams that ranks divide evenly, all of whose tokens are attended to by all.
  [[nodiscard]] std::vector<at::Tensor> attend_own_streams(
      ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const override;

 private:
  comm::Group neighbours_;
  Rings rings_;
};

}  // namespace kinora::parallel
