#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/nn/cross_attention.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/self_attention.h"

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
  /// Whether mlp() is more than the MLP of each token.
  [[nodiscard]] virtual bool divides_mlp() const { return false; }

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

  /// The same among the tokens of each window. rotary: undefined, or fp32 [N, D] of a window's N
  /// tokens, in the order frame, row, column. kConfig where not all tokens are here.
  [[nodiscard]] virtual at::Tensor window_attention(const SelfAttention& attention,
                                                    const at::Tensor& x, const Windows& windows,
                                                    const at::Tensor& rotary = {}) const;

  /// x: [B, T, S', C]; text and lengths as CrossAttention::forward takes them.
  [[nodiscard]] virtual at::Tensor cross_attention(const CrossAttention& attention,
                                                   const at::Tensor& x, const at::Tensor& text,
                                                   const at::Tensor& lengths) const;

  /// x: [B, T, S', C].
  [[nodiscard]] virtual at::Tensor mlp(const Mlp& mlp, const at::Tensor& x) const;
};

}  // namespace kinora::nn
