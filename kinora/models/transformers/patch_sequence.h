#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/diffusion/step_cache.h"
#include "kinora/nn/sequence.h"

namespace kinora::models {

/// The tokens of one patch, for one pass without gradients: part i of n of every frame, and of
/// every stream, texts included, is [i S / n, (i + 1) S / n) of its S tokens. They attend to the
/// keys and values of all tokens that a step cache keeps, those of the patch computed now and the
/// others by the pass that had them last (Fang et al. 2024, "PipeFusion", section 4.1). Attention
/// in time and to texts needs no others. A sample in one patch leaves its keys and values there.
class PatchSequence : public nn::Sequence {
 public:
  /// All are borrowed. patch: of cache.patches(), which have one pass each, in order. left: what
  /// leave() was given by the patches before.
  PatchSequence(diffusion::StepCache& cache, int64_t patch, std::vector<at::Tensor>& left)
      : cache_(cache), patch_(patch), left_(left) {}

  [[nodiscard]] bool divides_tokens() const override { return true; }
  /// kConfig where there are fewer tokens than patches.
  [[nodiscard]] at::Tensor enter(const at::Tensor& tokens) const override;
  /// Those of all patches behind the last one; before it, zeros without memory.
  [[nodiscard]] at::Tensor leave(const at::Tensor& part, int64_t tokens_a_frame) const override;
  [[nodiscard]] at::Tensor self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                          nn::Span span, int64_t tokens_a_frame,
                                          const at::Tensor& rotary = {}) const override;
  [[nodiscard]] bool attends_packed() const override { return true; }
  [[nodiscard]] at::Tensor attend_packed(const nn::SelfAttention& attention,
                                         const at::Tensor& packed, nn::Span span,
                                         int64_t tokens_a_frame,
                                         const at::Tensor& rotary) const override;
  [[nodiscard]] std::vector<at::Tensor> stream_attention(
      ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const override;

 private:
  /// The first token of the patch among so many; of the next one.
  [[nodiscard]] int64_t begin(int64_t tokens) const { return patch_ * tokens / cache_.patches(); }
  [[nodiscard]] int64_t end(int64_t tokens) const {
    return (patch_ + 1) * tokens / cache_.patches();
  }
  /// Those of the own tokens: undefined, or [T, S', D] of rotary [1 or T, 1 or S, D].
  [[nodiscard]] at::Tensor own_angles(const at::Tensor& rotary, int64_t frames,
                                      int64_t tokens_a_frame) const;
  /// Keys and values of the next attention, of all tokens, streams one behind the other: [B, T,
  /// sum of tokens, 2, H, D]. packed: [B, T, S_i', 3, H, D] of the own tokens of each.
  [[nodiscard]] at::Tensor kept(const std::vector<at::Tensor>& packed,
                                const std::vector<int64_t>& tokens) const;

  diffusion::StepCache& cache_;
  int64_t patch_;
  std::vector<at::Tensor>& left_;
  mutable size_t uses_ = 0;  // of attention, so far
};

}  // namespace kinora::models
