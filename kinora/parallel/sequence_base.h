#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/sequence.h"

namespace kinora::parallel {

/// What all schemes of sequence parallelism share: each of P ranks has a contiguous part of
/// ceil(S / P) tokens of every frame, the last parts filled up with zeros.
///
/// Tokens that fill up are inert whatever stands there, NaN included: attention clears them on the
/// way in and out, so that nothing reads them and their gradients are zero.
///
/// Attention in time and to texts is local, since all frames of a place are on one rank, and texts
/// on all of them.
class ShardedSequence : public nn::Sequence {
 public:
  explicit ShardedSequence(comm::Group group) : group_(std::move(group)) {}

  [[nodiscard]] bool divides_tokens() const final { return true; }
  [[nodiscard]] at::Tensor enter(const at::Tensor& tokens) const final;
  /// One all_gather; none in backward.
  [[nodiscard]] at::Tensor leave(const at::Tensor& part, int64_t tokens_a_frame) const final;
  /// kShape unless x is a part of so many tokens; kConfig if heads do not divide as they must.
  [[nodiscard]] at::Tensor self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                          nn::Span span, int64_t tokens_a_frame,
                                          const at::Tensor& rotary) const final;
  [[nodiscard]] at::Tensor attend_packed(const nn::SelfAttention& attention,
                                         const at::Tensor& packed, nn::Span span,
                                         int64_t tokens_a_frame,
                                         const at::Tensor& rotary) const final;
  [[nodiscard]] std::vector<at::Tensor> stream_attention(
      ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const final;
  /// By heads, whatever the scheme: one all-to-all of the packed projections, one back. kConfig
  /// unless P divides the heads.
  [[nodiscard]] at::Tensor window_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                            const nn::Windows& windows,
                                            const at::Tensor& rotary) const final;
  void add_up(const at::Tensor& numbers) const final { group_.all_reduce(numbers); }

 protected:
  /// Self-attention of a part [B, T, s, C] to all tokens; s is part_length(tokens_a_frame). What
  /// stands in tokens that fill up is zero, of the result anything.
  [[nodiscard]] virtual at::Tensor attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                          nn::Span span, int64_t tokens_a_frame,
                                          const at::Tensor& rotary) const = 0;
  /// The same between the linears, where attends_packed(): packed [B, T, s, 3 C] -> [B, T, s, C].
  [[nodiscard]] virtual at::Tensor attend_own(const nn::SelfAttention& attention,
                                              const at::Tensor& packed, nn::Span span,
                                              int64_t tokens_a_frame,
                                              const at::Tensor& rotary) const;
  /// stream_attention() of parts whose tokens that fill up are zero. kConfig where the scheme
  /// cannot.
  [[nodiscard]] virtual std::vector<at::Tensor> attend_own_streams(
      ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const;
  /// Whether attend() is for attention in time, too.
  [[nodiscard]] virtual bool divides_time() const { return false; }

  [[nodiscard]] const comm::Group& group() const { return group_; }
  /// s.
  [[nodiscard]] int64_t part_length(int64_t tokens_a_frame) const;
  /// Those of the own tokens: undefined or [T, s, D] of rotary [1 or T, 1 or S, D].
  [[nodiscard]] at::Tensor own_angles(const at::Tensor& rotary, int64_t num_frames,
                                      int64_t tokens_a_frame) const;
  /// The part [B, s, ..] of a stream of so many tokens, with zeros in those that fill up. kShape
  /// unless it is one.
  [[nodiscard]] at::Tensor cleared_stream(const at::Tensor& part, int64_t tokens) const;
  /// The packed projections of a part: [B, T, s, 3, H, D].
  [[nodiscard]] at::Tensor project(const nn::SelfAttention& attention, const at::Tensor& part,
                                   int64_t tokens_a_frame, const at::Tensor& rotary) const;
  /// The same of what qkv has made, [B, T, s, 3 C].
  [[nodiscard]] at::Tensor ready(const nn::SelfAttention& attention, const at::Tensor& packed,
                                 int64_t tokens_a_frame, const at::Tensor& rotary) const;

 private:
  void check_part(const at::Tensor& part, int64_t tokens_a_frame) const;
  /// With zeros in the tokens that fill up.
  [[nodiscard]] at::Tensor cleared(const at::Tensor& part, int64_t tokens_a_frame) const;

  comm::Group group_;
};

/// Attention of all tokens by some heads: packed [B, T, S, 3, H', D], normed and turned already
/// -> [B, T, S, H' D].
[[nodiscard]] at::Tensor attend_by_heads(const nn::SelfAttention& attention,
                                         const at::Tensor& packed, nn::Span span);

/// kConfig, naming the scheme, unless `parts` divides the heads.
void check_heads(const char* scheme, int64_t heads, int64_t parts);

}  // namespace kinora::parallel
