#pragma once

#include <vector>

#include "kinora/diffusion/step_cache.h"
#include "kinora/nn/sequence.h"

namespace kinora::models {

/// Tokens where another sequence has them, for one pass of the plain path: branches whose results a
/// step cache has are not computed. On the fast path ops::Branch::kept does it.
class KeptBranches : public nn::Sequence {
 public:
  /// Both are borrowed.
  KeptBranches(const nn::Sequence& sequence, diffusion::StepCache& cache)
      : sequence_(sequence), cache_(cache) {}

  [[nodiscard]] at::Tensor self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                          nn::Span span, int64_t tokens_a_frame,
                                          const at::Tensor& rotary = {}) const override;
  [[nodiscard]] at::Tensor window_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                            const nn::Windows& windows,
                                            const at::Tensor& rotary = {}) const override;
  [[nodiscard]] at::Tensor cross_attention(const nn::CrossAttention& attention, const at::Tensor& x,
                                           const at::Tensor& text,
                                           const at::Tensor& lengths) const override;
  [[nodiscard]] std::vector<at::Tensor> branch(
      ops::BranchKind kind, const std::function<std::vector<at::Tensor>()>& compute) const override;

  [[nodiscard]] bool divides_tokens() const override { return sequence_.divides_tokens(); }
  [[nodiscard]] at::Tensor enter(const at::Tensor& tokens) const override {
    return sequence_.enter(tokens);
  }
  [[nodiscard]] at::Tensor leave(const at::Tensor& part, int64_t tokens_a_frame) const override {
    return sequence_.leave(part, tokens_a_frame);
  }
  [[nodiscard]] bool attends_packed() const override { return sequence_.attends_packed(); }
  [[nodiscard]] at::Tensor attend_packed(const nn::SelfAttention& attention,
                                         const at::Tensor& packed, nn::Span span,
                                         int64_t tokens_a_frame,
                                         const at::Tensor& rotary) const override {
    return sequence_.attend_packed(attention, packed, span, tokens_a_frame, rotary);
  }
  [[nodiscard]] std::vector<at::Tensor> stream_attention(
      ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const override {
    return sequence_.stream_attention(kernels, packed, tokens, text_lengths, blocks);
  }
  [[nodiscard]] bool makes_streams() const override { return sequence_.makes_streams(); }
  [[nodiscard]] std::vector<at::Tensor> unmade_attention(
      ops::BlockKernels* kernels, const std::vector<nn::UnmadeStream>& streams,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const override {
    return sequence_.unmade_attention(kernels, streams, tokens, text_lengths, blocks);
  }
  void add_up(const at::Tensor& numbers) const override { sequence_.add_up(numbers); }

 private:
  const nn::Sequence& sequence_;
  diffusion::StepCache& cache_;
};

/// What attention among such tokens is to a step cache.
[[nodiscard]] constexpr ops::BranchKind kind_of(nn::Span span) {
  return span == nn::Span::kTime ? ops::BranchKind::kTime : ops::BranchKind::kSpace;
}

}  // namespace kinora::models
