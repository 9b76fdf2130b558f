#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kinora/nn/cross_attention.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/self_attention.h"
#include "kinora/ops/block_mask.h"
#include "kinora/ops/kept_result.h"
#include "kinora/ops/linear_weights.h"

namespace kinora::nn {

/// Among which tokens of a clip of T frames with S tokens each attention goes.
enum class Span {
  kFrame,  ///< those of the same frame
  kTime,   ///< those at the same place in all frames
  kClip,   ///< all
};

/// Tokens [B, T, S, C] as sequences [G, N, M, C] of N tokens that lie M apart, without a copy: what
/// SelfAttention::attend_along takes.
[[nodiscard]] at::Tensor along(const at::Tensor& tokens, Span span);

/// Attention among all tokens of streams that are here: Sequence::stream_attention of one rank.
/// blocks: of all of them; null: everyone attends to all.
[[nodiscard]] std::vector<at::Tensor> attend_streams(
    ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
    const at::Tensor& text_lengths, const std::shared_ptr<const ops::BlockMask>& blocks = nullptr);
/// The same where they lie one behind the other, of which the last has those from before_text on:
/// [B, S, 3, H, D] to [B, S, H D].
[[nodiscard]] at::Tensor attend_joined(
    ops::BlockKernels* kernels, const at::Tensor& all, int64_t before_text,
    const at::Tensor& text_lengths, const std::shared_ptr<const ops::BlockMask>& blocks = nullptr);

/// A stream whose queries, keys and values are not made yet.
struct UnmadeStream {
  at::Tensor x;            ///< [B, S', C] of the own tokens: what `qkv` reads
  ops::LinearWeights qkv;  ///< [3 H D, C], rows (3, H, D) major, without updates
  int64_t num_heads = 1;   ///< H
  /// Norms and turns [B, S, 3, H', D] of all S tokens, of some heads.
  std::function<at::Tensor(const at::Tensor& packed)> ready;
};

/// Windows that tile a clip from its first corner; what they reach beyond its end is no token.
struct Windows {
  int64_t rows = 0;  ///< of a frame: S = rows * columns
  int64_t columns = 0;
  int64_t window_frames = 1;
  int64_t window_rows = 1;
  int64_t window_columns = 1;
};

/// Where a model's tokens lie: the seam between models, which name the points at which it matters,
/// and sequence parallelism, which implements them. This one, the default, has them all here.
///
/// Between enter() and leave() a model holds its own part [B, T, S', C] of tokens [B, T, S, C] and
/// treats each token for itself, except through the functions below. Conditions are the same on all
/// ranks of a sequence; so is what leave() returns, and the loss. Then the gradient of every
/// parameter used in between, averaged over all ranks, is that of one rank which holds everything.
class Sequence {
 public:
  Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  virtual ~Sequence() = default;

  /// Whether a part is less than all tokens, so that self-attention must go through this object.
  [[nodiscard]] virtual bool divides_tokens() const { return false; }

  /// This rank's part of what belongs to tokens: [B or 1, T or 1, S, ...] -> [.., .., S', ...]. Not
  /// differentiable: for inputs, positions, masks. Tokens that fill up the last part are zeros.
  [[nodiscard]] virtual at::Tensor enter(const at::Tensor& tokens) const { return tokens; }

  /// All tokens again: [B, T, S', ...] -> [B, T, tokens_a_frame, ...].
  [[nodiscard]] virtual at::Tensor leave(const at::Tensor& part, int64_t /*tokens_a_frame*/) const {
    return part;
  }

  /// x: [B, T, S', C]. rotary: undefined, or fp32 [T, 1 or S, D], of all tokens (not of the part).
  /// tokens_a_frame: S. Returns [B, T, S', C].
  [[nodiscard]] virtual at::Tensor self_attention(const SelfAttention& attention,
                                                  const at::Tensor& x, Span span,
                                                  int64_t tokens_a_frame,
                                                  const at::Tensor& rotary = {}) const;

  /// Whether attend_packed() is there where tokens are divided: attention whose linears, of the own
  /// tokens, are somebody else's.
  [[nodiscard]] virtual bool attends_packed() const { return false; }
  /// self_attention() without its linears: what qkv makes of the own tokens, [B, T, S', 3 C], to
  /// what proj reads, [B, T, S', C]. Where tokens are divided.
  [[nodiscard]] virtual at::Tensor attend_packed(const SelfAttention& attention,
                                                 const at::Tensor& packed, Span span,
                                                 int64_t tokens_a_frame,
                                                 const at::Tensor& rotary) const;

  /// Attention among the tokens of several streams together, normed and turned already.
  /// packed[i]: [B, S_i', 3, H, D] of the own tokens of stream i; tokens[i]: S_i; text_lengths:
  /// int64 [B], so many of the last stream's tokens are attended to, undefined: all. blocks: of all
  /// tokens, one stream behind the other; null: everyone attends to all. kernels: null: without.
  /// Returns [B, S_i', H D] for each stream. kConfig where the scheme cannot.
  [[nodiscard]] virtual std::vector<at::Tensor> stream_attention(
      ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const;

  /// Whether unmade_attention() takes the place of stream_attention().
  [[nodiscard]] virtual bool makes_streams() const { return false; }
  /// stream_attention() of streams whose queries, keys and values it makes itself.
  [[nodiscard]] virtual std::vector<at::Tensor> unmade_attention(
      ops::BlockKernels* kernels, const std::vector<UnmadeStream>& streams,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& blocks) const;

  /// self_attention() among the tokens of each window. rotary: undefined, or fp32 [N, D] of a
  /// window's N tokens, in the order frame, row, column. kConfig where not all tokens are here.
  [[nodiscard]] virtual at::Tensor window_attention(const SelfAttention& attention,
                                                    const at::Tensor& x, const Windows& windows,
                                                    const at::Tensor& rotary = {}) const;

  /// x: [B, T, S', C]; text and lengths as CrossAttention::forward takes them.
  [[nodiscard]] virtual at::Tensor cross_attention(const CrossAttention& attention,
                                                   const at::Tensor& x, const at::Tensor& text,
                                                   const at::Tensor& lengths) const;

  /// What `compute` makes of the own tokens, of such a branch: for branches that none of the others
  /// computes.
  [[nodiscard]] virtual std::vector<at::Tensor> branch(
      ops::BranchKind /*kind*/, const std::function<std::vector<at::Tensor>()>& compute) const {
    return compute();
  }
  /// That of an MLP. x: [B, T, S', C].
  [[nodiscard]] at::Tensor mlp(const Mlp& mlp, const at::Tensor& x) const;

  /// Numbers of the own tokens become those of all; what tokens that fill up add is in them.
  virtual void add_up(const at::Tensor& /*numbers*/) const {}
};

}  // namespace kinora::nn
