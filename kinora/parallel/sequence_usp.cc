#include "kinora/parallel/sequence_usp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <utility>

#include "kinora/comm/differentiable.h"
#include "kinora/core/error.h"
#include "kinora/parallel/ring_attention.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, U neighbours, H' = H / U.

namespace kinora::parallel {

namespace {

/// Whether the parts of all ranks [B, s, ..] have no room for other than these tokens.
bool are_full(const std::vector<at::Tensor>& parts, const std::vector<int64_t>& tokens,
              int64_t ranks) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size(1) * ranks != tokens[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

UspSequence::UspSequence(comm::Group group, comm::Group neighbours, Rings rings)
    : ShardedSequence(std::move(group)),
      neighbours_(std::move(neighbours)),
      rings_(std::move(rings)) {}

at::Tensor UspSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                               nn::Span span, int64_t tokens_a_frame,
                               const at::Tensor& rotary) const {
  return attention.proj.forward(
      attend_own(attention, attention.qkv.forward(x), span, tokens_a_frame, rotary));
}

at::Tensor UspSequence::attend_own(const nn::SelfAttention& attention, const at::Tensor& packed,
                                   nn::Span span, int64_t tokens_a_frame,
                                   const at::Tensor& rotary) const {
  check_heads("ulysses", attention.num_heads(), neighbours_.size());
  const at::Tensor ready = comm::all_to_all(
      neighbours_, this->ready(attention, packed, tokens_a_frame, rotary), /*split=*/4,
      /*joined=*/2);  // [B, T, U s, 3, H', D]
  const at::Tensor out =
      rings_.size() == 1
          ? filled_up(attend_by_heads(attention, first_of(ready, 2, tokens_a_frame), span),
                      ready.size(2))
                .unflatten(3, {ready.size(4), -1})
          : ring_attention(rings_, ready, span, tokens_a_frame);  // [B, T, U s, H', D]
  return comm::all_to_all(neighbours_, out, /*split=*/2, /*joined=*/3).flatten(3);
}

std::vector<at::Tensor> UspSequence::attend_own_streams(
    ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
    const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
    const std::shared_ptr<const ops::BlockMask>& blocks) const {
  check_heads("ulysses", packed.front().size(3), neighbours_.size());
  if (!at::GradMode::is_enabled() && rings_.size() == 1 &&
      are_full(packed, tokens, neighbours_.size())) {
    const at::Tensor all = neighbours_.reshard_together(packed, /*split=*/3, /*joined=*/1);
    const at::Tensor out =
        nn::attend_joined(kernels, all, all.size(1) - tokens.back(), text_lengths, blocks)
            .unflatten(2, {all.size(3), -1});  // [B, tokens, H', D]
    std::vector<at::Tensor> parts =
        neighbours_.reshard_apart(out, tokens, /*split=*/1, /*joined=*/2);
    for (at::Tensor& part : parts) {
      part = part.flatten(2);
    }
    return parts;
  }
  std::vector<at::Tensor> parts;
  std::vector<int64_t> sizes;
  for (const at::Tensor& part : packed) {
    parts.push_back(comm::all_to_all(neighbours_, part, /*split=*/3, /*joined=*/1));
    sizes.push_back(parts.back().size(1));  // [B, U s_i, 3, H', D]
  }
  std::vector<at::Tensor> out;
  if (rings_.size() == 1) {
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i] = first_of(parts[i], 1, tokens[i]);
    }
    const int64_t heads = parts.front().size(3);
    out = nn::attend_streams(kernels, parts, text_lengths, blocks);
    for (size_t i = 0; i < out.size(); ++i) {  // [B, U s_i, H', D]
      out[i] = filled_up(out[i].unsqueeze(1), sizes[i]).squeeze(1).unflatten(2, {heads, -1});
    }
  } else {
    KINORA_CHECK(blocks == nullptr, kConfig,
                 "[sequence] in a ring all tokens attend to all, and model.sliding_window leaves "
                 "some out. Hint: parallel.sequence_scheme ulysses, or model.sliding_window=[]");
    for (const int64_t count : tokens) {
      KINORA_CHECK(count % group().size() == 0 && !text_lengths.defined(), kConfig,
                   "[sequence] in a ring all tokens of text and image are attended to, and the ",
                   group().size(), " ranks must divide them evenly, got ", count,
                   text_lengths.defined() ? " and captions of unlike lengths" : "",
                   ". Hint: parallel.sequence_scheme ulysses");
    }
    const at::Tensor all = at::cat(parts, 1).unsqueeze(1);
    out = ring_attention(rings_, all, nn::Span::kFrame, all.size(2) * rings_.size())
              .squeeze(1)
              .split_with_sizes(sizes, 1);
  }
  for (at::Tensor& part : out) {
    part = comm::all_to_all(neighbours_, part, /*split=*/1, /*joined=*/2).flatten(2);
  }
  return out;
}

}  // namespace kinora::parallel
