#include "kinora/parallel/spans.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/floor_divide.h>

#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::parallel {

at::Tensor by_span(const at::Tensor& tokens, nn::Span span) {
  switch (span) {
    case nn::Span::kFrame:
      return tokens.flatten(0, 1);
    case nn::Span::kTime:
      return tokens.transpose(1, 2).flatten(0, 1);
    case nn::Span::kClip:
      return tokens.flatten(1, 2);
  }
  KINORA_UNREACHABLE("[spans] unknown span");
}

at::Tensor from_span(const at::Tensor& sequences, nn::Span span, int64_t num_frames,
                     int64_t tokens_a_frame) {
  switch (span) {
    case nn::Span::kFrame:
      return sequences.unflatten(0, {-1, num_frames});
    case nn::Span::kTime:
      return sequences.unflatten(0, {-1, tokens_a_frame}).transpose(1, 2);
    case nn::Span::kClip:
      return sequences.unflatten(1, {num_frames, tokens_a_frame});
  }
  KINORA_UNREACHABLE("[spans] unknown span");
}

at::Tensor angles_by_span(const at::Tensor& rotary, nn::Span span, int64_t batch,
                          int64_t num_frames, int64_t tokens_a_frame) {
  return rotary.defined() ? by_span(rotary.expand({batch, num_frames, tokens_a_frame, -1}), span)
                          : rotary;
}

WindowPlaces window_places(const nn::Windows& windows, int64_t num_frames,
                           const at::Device& device) {
  // Of each token, along a dim: [count] broadcast to [T, rows, columns].
  struct Along {
    int64_t num_windows;
    at::Tensor window;
    at::Tensor place;
  };
  const auto along = [&](int64_t count, int64_t window, at::IntArrayRef shape) {
    const at::Tensor i = at::arange(count, at::device(device).dtype(at::kLong)).view(shape);
    return Along{ceil_div(count, window), at::floor_divide(i, window), i.remainder(window)};
  };
  const auto [rows, columns, wt, wh, ww] = windows;
  const Along frame = along(num_frames, wt, {-1, 1, 1});
  const Along row = along(rows, wh, {-1, 1});
  const Along column = along(columns, ww, {-1});
  const at::Tensor window =
      (frame.window * row.num_windows + row.window) * column.num_windows + column.window;
  const at::Tensor in_window = (frame.place * wh + row.place) * ww + column.place;
  const int64_t window_tokens = wt * wh * ww;
  return {frame.num_windows * row.num_windows * column.num_windows, window_tokens,
          (window * window_tokens + in_window).flatten(), in_window.flatten()};
}

at::Tensor filled_up(const at::Tensor& tokens, int64_t length) {
  if (tokens.size(2) == length) {
    return tokens;
  }
  std::vector<int64_t> padding(2 * (tokens.dim() - 2), 0);  // the last dim's first
  padding.back() = length - tokens.size(2);
  return at::constant_pad_nd(tokens, padding);
}

at::Tensor first_of(const at::Tensor& x, int64_t dim, int64_t count) {
  return x.size(dim) == count ? x : x.narrow(dim, 0, count);
}

}  // namespace kinora::parallel
