#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "kinora/nn/sequence.h"

/// Tokens [B, T, N, ..] as sequences [B', N', ..] of those that attend to each other.
namespace kinora::parallel {

/// [B, T, N, ..] -> [B', N', ..]: kFrame [B T, N, ..], kTime [B N, T, ..], kClip [B, T N, ..].
[[nodiscard]] at::Tensor by_span(const at::Tensor& tokens, nn::Span span);

/// The way back.
[[nodiscard]] at::Tensor from_span(const at::Tensor& sequences, nn::Span span, int64_t num_frames,
                                   int64_t tokens_a_frame);

/// Angles of all tokens, undefined or fp32 [1 or T, 1 or N, D], for such sequences: undefined or
/// [B', N', D].
[[nodiscard]] at::Tensor angles_by_span(const at::Tensor& rotary, nn::Span span, int64_t batch,
                                        int64_t num_frames, int64_t tokens_a_frame);

/// Where the tokens of a clip lie when it is cut into windows of N tokens, one behind the other.
struct WindowPlaces {
  int64_t num_windows;
  int64_t window_tokens;  ///< N
  at::Tensor in_windows;  ///< int64 [T S]: among all W N tokens of windows
  at::Tensor in_window;   ///< int64 [T S]: among the N of its own
};
[[nodiscard]] WindowPlaces window_places(const nn::Windows& windows, int64_t num_frames,
                                         const at::Device& device);

/// The first `count` along a dim. All of them are `x` itself: narrow() would cost its backward a
/// tensor of zeros and a copy.
[[nodiscard]] at::Tensor first_of(const at::Tensor& x, int64_t dim, int64_t count);

/// `tokens` with zeros behind its tokens (dim 2), `length` in all.
[[nodiscard]] at::Tensor filled_up(const at::Tensor& tokens, int64_t length);

}  // namespace kinora::parallel
