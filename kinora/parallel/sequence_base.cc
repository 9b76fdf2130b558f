#include "kinora/parallel/sequence_base.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kinora/comm/differentiable.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/token_attention.h"
#include "kinora/parallel/spans.h"

namespace kinora::parallel {

int64_t ShardedSequence::part_length(int64_t tokens_a_frame) const {
  return ceil_div(tokens_a_frame, group_.size());
}

at::Tensor ShardedSequence::enter(const at::Tensor& tokens) const {
  const int64_t length = part_length(tokens.size(2));
  const int64_t first = std::min(group_.rank() * length, tokens.size(2));
  const int64_t count = std::min(length, tokens.size(2) - first);
  return filled_up(tokens.narrow(2, first, count), length).contiguous();
}

at::Tensor ShardedSequence::leave(const at::Tensor& part, int64_t tokens_a_frame) const {
  return first_of(comm::all_gather(group_, part, 2), 2, tokens_a_frame);
}

at::Tensor ShardedSequence::cleared(const at::Tensor& part, int64_t tokens_a_frame) const {
  const int64_t length = part.size(2);
  const int64_t own = std::clamp<int64_t>(tokens_a_frame - group_.rank() * length, 0, length);
  return filled_up(first_of(part, 2, own), length);
}

at::Tensor ShardedSequence::own_angles(const at::Tensor& rotary, int64_t num_frames,
                                       int64_t tokens_a_frame) const {
  return rotary.defined() ? enter(rotary.expand({1, num_frames, tokens_a_frame, -1})).squeeze(0)
                          : rotary;
}

at::Tensor ShardedSequence::project(const nn::SelfAttention& attention, const at::Tensor& part,
                                    int64_t tokens_a_frame, const at::Tensor& rotary) const {
  return ready(attention, attention.qkv.forward(part), tokens_a_frame, rotary);
}

at::Tensor ShardedSequence::ready(const nn::SelfAttention& attention, const at::Tensor& packed,
                                  int64_t tokens_a_frame, const at::Tensor& rotary) const {
  at::Tensor angles = own_angles(rotary, packed.size(1), tokens_a_frame);  // [T, s, D]
  if (angles.defined()) {
    angles = angles.flatten(0, 1);
  }
  return attention
      .norm_and_rotate(packed.flatten(1, 2).unflatten(-1, {3, attention.num_heads(), -1}), angles)
      .unflatten(1, {packed.size(1), packed.size(2)});
}

void ShardedSequence::check_part(const at::Tensor& part, int64_t tokens_a_frame) const {
  KINORA_CHECK(part.dim() == 4 && part.size(2) == part_length(tokens_a_frame), kShape,
               "[sequence] of ", tokens_a_frame, " tokens a frame each of ", group_.size(),
               " ranks has ", part_length(tokens_a_frame), ": [B, T, s, C], got ", part.sizes(),
               " on rank ", group_.rank(), '.');
}

at::Tensor ShardedSequence::self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                           nn::Span span, int64_t tokens_a_frame,
                                           const at::Tensor& rotary) const {
  check_part(x, tokens_a_frame);
  const at::Tensor part = cleared(x, tokens_a_frame);
  const at::Tensor out =
      span == nn::Span::kTime && !divides_time()
          ? nn::Sequence::self_attention(attention, part, span, part.size(2),
                                         own_angles(rotary, x.size(1), tokens_a_frame))
          : attend(attention, part, span, tokens_a_frame, rotary);
  return cleared(out, tokens_a_frame);
}

at::Tensor ShardedSequence::attend_packed(const nn::SelfAttention& attention,
                                          const at::Tensor& packed, nn::Span span,
                                          int64_t tokens_a_frame, const at::Tensor& rotary) const {
  check_part(packed, tokens_a_frame);
  return cleared(
      attend_own(attention, cleared(packed, tokens_a_frame), span, tokens_a_frame, rotary),
      tokens_a_frame);
}

at::Tensor ShardedSequence::attend_own(const nn::SelfAttention& /*attention*/,
                                       const at::Tensor& /*packed*/, nn::Span /*span*/,
                                       int64_t /*tokens_a_frame*/,
                                       const at::Tensor& /*rotary*/) const {
  KINORA_UNREACHABLE("[sequence] this scheme has its own linears");
}

std::vector<at::Tensor> ShardedSequence::stream_attention(
    ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
    const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
    const std::shared_ptr<const ops::BlockMask>& blocks) const {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < packed.size(); ++i) {
    parts.push_back(cleared_stream(packed[i], tokens[i]));
  }
  std::vector<at::Tensor> out = attend_own_streams(kernels, parts, tokens, text_lengths, blocks);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = cleared_stream(out[i], tokens[i]);
  }
  return out;
}

at::Tensor ShardedSequence::cleared_stream(const at::Tensor& part, int64_t tokens) const {
  const at::Tensor frame = part.unsqueeze(1);  // the tokens in dim 2
  check_part(frame.flatten(3), tokens);
  return cleared(frame, tokens).squeeze(1);
}

std::vector<at::Tensor> ShardedSequence::attend_own_streams(
    ops::BlockKernels* /*kernels*/, const std::vector<at::Tensor>& /*packed*/,
    const std::vector<int64_t>& /*tokens*/, const at::Tensor& /*text_lengths*/,
    const std::shared_ptr<const ops::BlockMask>& /*blocks*/) const {
  throw_error(ErrorKind::kConfig,
              "[sequence] this scheme is not for attention of text and image together. Hint: "
              "parallel.sequence_scheme auto, ulysses, ring or usp");
}

at::Tensor ShardedSequence::window_attention(const nn::SelfAttention& attention,
                                             const at::Tensor& x, const nn::Windows& windows,
                                             const at::Tensor& rotary) const {
  const int64_t tokens = windows.rows * windows.columns;
  const int64_t frames = x.size(1);
  check_part(x, tokens);
  check_heads("attention in windows", attention.num_heads(), group_.size());
  const WindowPlaces places = window_places(windows, frames, x.device());
  const at::Tensor angles =
      rotary.defined() ? rotary.index_select(0, places.in_window).unflatten(0, {frames, tokens})
                       : rotary;  // [T, S, D]
  const at::Tensor packed =
      first_of(comm::all_to_all(group_, project(attention, cleared(x, tokens), tokens, angles),
                                /*split=*/4, /*joined=*/2),
               2, tokens)
          .flatten(1, 2);  // [B, T S, 3, H', D]
  std::vector<int64_t> shape = packed.sizes().vec();
  shape[1] = places.num_windows * places.window_tokens;
  const at::Tensor cut = at::zeros(shape, packed.options())
                             .index_copy(1, places.in_windows, packed)
                             .unflatten(1, {places.num_windows, places.window_tokens})
                             .flatten(0, 1)
                             .permute({2, 0, 3, 1, 4});  // [3, B W, H', N, D]
  std::optional<at::Tensor> valid;
  if (shape[1] > packed.size(1)) {  // windows reach beyond the end
    valid = at::zeros({shape[1]}, x.options().dtype(at::kBool))
                .index_fill_(0, places.in_windows, true)
                .view({1, places.num_windows, 1, 1, places.window_tokens})
                .expand({x.size(0), -1, -1, -1, -1})
                .flatten(0, 1);  // [B W, 1, 1, N]
  }
  const at::Tensor out = at::scaled_dot_product_attention(cut[0], cut[1], cut[2], valid)
                             .transpose(1, 2)  // [B W, N, H', D]
                             .unflatten(0, {x.size(0), -1})
                             .flatten(1, 2)
                             .index_select(1, places.in_windows)
                             .unflatten(1, {frames, tokens});  // [B, T, S, H', D]
  const at::Tensor part = comm::all_to_all(group_, filled_up(out, group_.size() * x.size(2)),
                                           /*split=*/2, /*joined=*/3);
  return cleared(attention.proj.forward(part.flatten(3)), tokens);
}

at::Tensor attend_by_heads(const nn::SelfAttention& attention, const at::Tensor& packed,
                           nn::Span span) {
  if (attention.kernels() != nullptr) {
    const at::Tensor rows = nn::along(packed.flatten(3).contiguous(), span);
    return ops::self_attention(*attention.kernels(), rows, packed.size(4), {})
        .view({packed.size(0), packed.size(1), packed.size(2), -1});
  }
  const at::Tensor out =
      ops::attention(by_span(packed, span).flatten(2), packed.size(4));  // [B', N', H' D]
  return from_span(out, span, packed.size(1), packed.size(2));
}

void check_heads(const char* scheme, int64_t heads, int64_t parts) {
  KINORA_CHECK(heads % parts == 0, kConfig, "[sequence] ", scheme, " divides ", heads,
               " heads among ", parts,
               " ranks, which does not come out even. Hint: parallel.sequence_scheme ring or dsp "
               "does not divide heads");
}

}  // namespace kinora::parallel
