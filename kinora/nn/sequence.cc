#include "kinora/nn/sequence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/ops/token_attention.h"

namespace kinora::nn {
namespace {

/// How many windows there are along each dim.
struct Counts {
  int64_t frames, rows, columns;
};

/// [B, T, rows, columns, ...] -> [B windows, N, ...], beyond the end zeros.
at::Tensor cut(const at::Tensor& x, const Windows& windows, const Counts& counts) {
  const auto [rows, columns, wt, wh, ww] = windows;
  return at::constant_pad_nd(x, {0, 0, 0, counts.columns * ww - columns, 0, counts.rows * wh - rows,
                                 0, counts.frames * wt - x.size(1)})
      .view({x.size(0), counts.frames, wt, counts.rows, wh, counts.columns, ww, x.size(4)})
      .permute({0, 1, 3, 5, 2, 4, 6, 7})
      .reshape({-1, wt * wh * ww, x.size(4)});
}

/// The reverse.
at::Tensor join(const at::Tensor& parts, const Windows& windows, const Counts& counts,
                at::IntArrayRef shape) {
  const auto [rows, columns, wt, wh, ww] = windows;
  return parts.view({shape[0], counts.frames, counts.rows, counts.columns, wt, wh, ww, shape[4]})
      .permute({0, 1, 4, 2, 5, 3, 6, 7})
      .reshape({shape[0], counts.frames * wt, counts.rows * wh, counts.columns * ww, shape[4]})
      .narrow(1, 0, shape[1])
      .narrow(2, 0, rows)
      .narrow(3, 0, columns);
}

}  // namespace

at::Tensor along(const at::Tensor& tokens, Span span) {
  switch (span) {
    case Span::kFrame:
      return tokens.flatten(0, 1).unsqueeze(2);
    case Span::kTime:
      return tokens;
    case Span::kClip:
      return tokens.flatten(1, 2).unsqueeze(2);
  }
  KINORA_UNREACHABLE("[sequence] unknown span");
}

at::Tensor Sequence::self_attention(const SelfAttention& attention, const at::Tensor& x, Span span,
                                    int64_t /*tokens_a_frame*/, const at::Tensor& rotary) const {
  const int64_t batch = x.size(0);
  const int64_t frames = x.size(1);
  const int64_t tokens = x.size(2);
  if (attention.kernels() != nullptr) {
    const at::Tensor angles = rotary.defined() ? rotary.expand({frames, tokens, -1}) : rotary;
    return attention.attend_along(along(x, span), angles).view_as(x);
  }
  switch (span) {
    case Span::kFrame: {
      at::Tensor angles;
      if (rotary.defined()) {  // [B T, S, D]
        angles = rotary.expand({frames, tokens, -1}).repeat({batch, 1, 1});
      }
      return attention.forward(x.flatten(0, 1), angles).view_as(x);
    }
    case Span::kTime: {
      at::Tensor angles;
      if (rotary.defined()) {  // [B S, T, D]
        angles = rotary.expand({frames, tokens, -1}).transpose(0, 1).repeat({batch, 1, 1});
      }
      const at::Tensor in_time = x.transpose(1, 2).reshape({batch * tokens, frames, -1});
      return attention.forward(in_time, angles)
          .view({batch, tokens, frames, -1})
          .transpose(1, 2)
          .contiguous();
    }
    case Span::kClip: {
      at::Tensor angles;
      if (rotary.defined()) {  // [N, D]
        angles = rotary.expand({frames, tokens, -1}).reshape({frames * tokens, -1});
      }
      return attention.forward(x.flatten(1, 2), angles).view_as(x);
    }
  }
  return {};
}

at::Tensor Sequence::attend_packed(const SelfAttention& /*attention*/, const at::Tensor& /*packed*/,
                                   Span /*span*/, int64_t /*tokens_a_frame*/,
                                   const at::Tensor& /*rotary*/) const {
  KINORA_UNREACHABLE("[sequence] this scheme has its own linears");
}

std::vector<at::Tensor> Sequence::stream_attention(
    ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
    const std::vector<int64_t>& /*tokens*/, const at::Tensor& text_lengths,
    const std::shared_ptr<const ops::BlockMask>& blocks) const {
  return attend_streams(kernels, packed, text_lengths, blocks);
}

std::vector<at::Tensor> Sequence::unmade_attention(
    ops::BlockKernels* /*kernels*/, const std::vector<UnmadeStream>& /*streams*/,
    const std::vector<int64_t>& /*tokens*/, const at::Tensor& /*text_lengths*/,
    const std::shared_ptr<const ops::BlockMask>& /*blocks*/) const {
  KINORA_UNREACHABLE("[sequence] this scheme leaves its linears to others");
}

at::Tensor attend_joined(ops::BlockKernels* kernels, const at::Tensor& all, int64_t before_text,
                         const at::Tensor& text_lengths,
                         const std::shared_ptr<const ops::BlockMask>& blocks) {
  if (kernels != nullptr) {
    const at::Tensor lengths =
        text_lengths.defined() ? (text_lengths + before_text).to(at::kInt) : text_lengths;
    return ops::self_attention(*kernels, all.flatten(2).unsqueeze(2), all.size(3), {},
                               {.lengths = lengths, .blocks = blocks})
        .squeeze(2);
  }
  std::optional<at::Tensor> attended;
  if (blocks != nullptr) {
    attended = blocks->of_rows(all.size(1), all.size(1));
  }
  if (text_lengths.defined()) {
    const at::Tensor is_read = (at::arange(all.size(1), text_lengths.options()) <
                                (text_lengths + before_text).unsqueeze(1))
                                   .unsqueeze(1)
                                   .unsqueeze(1);  // [B, 1, 1, S]
    attended = attended ? attended->logical_and(is_read) : is_read;
  }
  const std::vector<at::Tensor> parts = all.permute({2, 0, 3, 1, 4}).unbind(0);  // [B, H, S, D]
  return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], attended)
      .transpose(1, 2)
      .flatten(2);
}

std::vector<at::Tensor> attend_streams(ops::BlockKernels* kernels,
                                       const std::vector<at::Tensor>& packed,
                                       const at::Tensor& text_lengths,
                                       const std::shared_ptr<const ops::BlockMask>& blocks) {
  const at::Tensor all = at::cat(packed, 1);  // [B, S, 3, H, D]
  std::vector<int64_t> sizes;
  for (const at::Tensor& part : packed) {
    sizes.push_back(part.size(1));
  }
  return attend_joined(kernels, all, all.size(1) - sizes.back(), text_lengths, blocks)
      .split_with_sizes(sizes, 1);
}

at::Tensor Sequence::window_attention(const SelfAttention& attention, const at::Tensor& x,
                                      const Windows& windows, const at::Tensor& rotary) const {
  const auto [rows, columns, wt, wh, ww] = windows;
  KINORA_CHECK(x.size(2) == rows * columns, kConfig,
               "[window_attention] attention in windows needs all ", rows * columns,
               " tokens of a frame on one rank, got ", x.size(2));
  const Counts counts = {ceil_div(x.size(1), wt), ceil_div(rows, wh), ceil_div(columns, ww)};
  const at::Tensor grid = x.unflatten(2, {rows, columns});
  at::Tensor valid;
  if (counts.frames * wt != x.size(1) || counts.rows * wh != rows ||
      counts.columns * ww != columns) {
    const at::Tensor tokens =
        at::ones({1, x.size(1), rows, columns, 1}, x.options().dtype(at::kBool));
    valid = cut(tokens, windows, counts).squeeze(-1).repeat({x.size(0), 1});
  }
  const at::Tensor parts = attention.forward(cut(grid, windows, counts), rotary, valid);
  return join(parts, windows, counts, grid.sizes()).flatten(2, 3);
}

at::Tensor Sequence::cross_attention(const CrossAttention& attention, const at::Tensor& x,
                                     const at::Tensor& text, const at::Tensor& lengths) const {
  return attention.forward(x.flatten(1, 2), text, lengths).view_as(x);
}

at::Tensor Sequence::mlp(const Mlp& mlp, const at::Tensor& x) const {
  return branch(ops::BranchKind::kMlp, [&] { return std::vector{mlp.forward(x)}; })[0];
}

}  // namespace kinora::nn
