#include "kinora/models/transformers/patch_sequence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/ops/block_kernels.h"

// Shapes: B batch, T frames, S tokens of a frame or stream, S' those of the patch, H heads, D their
// width.

namespace kinora::models {
namespace {

/// q: [B, N, H, D]; kv: [B, L, 2, H, D]; lengths: undefined, or int64 [B], so many of the L are
/// attended to. Returns [B, N, H D].
at::Tensor attend(ops::BlockKernels* kernels, const at::Tensor& q, const at::Tensor& kv,
                  const at::Tensor& lengths) {
  const std::vector<at::Tensor> parts = kv.unbind(2);
  if (kernels != nullptr) {
    const at::Tensor out = at::empty(q.sizes(), q.options());
    (void)kernels->attend(
        {q, parts[0], parts[1], lengths.defined() ? lengths.to(at::kInt) : lengths}, out, {});
    return out.flatten(2);
  }
  std::optional<at::Tensor> attended;
  if (lengths.defined()) {
    attended = (at::arange(kv.size(1), lengths.options()) < lengths.unsqueeze(1))
                   .unsqueeze(1)
                   .unsqueeze(1);  // [B, 1, 1, L]
  }
  return at::scaled_dot_product_attention(q.transpose(1, 2), parts[0].transpose(1, 2),
                                          parts[1].transpose(1, 2), attended)
      .transpose(1, 2)
      .flatten(2);
}

/// The sequences [B', N, ...] of tokens [B, T, S, ...] that attend to each other.
at::Tensor sequences(const at::Tensor& tokens, nn::Span span) {
  return span == nn::Span::kFrame ? tokens.flatten(0, 1) : tokens.flatten(1, 2);
}

}  // namespace

at::Tensor PatchSequence::enter(const at::Tensor& tokens) const {
  const int64_t count = tokens.size(2);
  KINORA_CHECK(count >= cache_.patches(), kConfig, "[sample] sample.patches must be at most ",
               count, ", of which there are tokens in a frame or text, got ", cache_.patches());
  return tokens.slice(2, begin(count), end(count));
}

at::Tensor PatchSequence::leave(const at::Tensor& part, int64_t tokens_a_frame) const {
  left_.push_back(part);
  if (patch_ + 1 == cache_.patches()) {
    return at::cat(left_, 2);
  }
  std::vector<int64_t> shape = part.sizes().vec();
  shape[2] = tokens_a_frame;
  return at::zeros({}, part.options()).expand(shape);
}

at::Tensor PatchSequence::own_angles(const at::Tensor& rotary, int64_t frames,
                                     int64_t tokens_a_frame) const {
  return rotary.defined() ? enter(rotary.expand({1, frames, tokens_a_frame, -1})).squeeze(0)
                          : rotary;
}

at::Tensor PatchSequence::self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                         nn::Span span, int64_t tokens_a_frame,
                                         const at::Tensor& rotary) const {
  if (span == nn::Span::kTime) {
    return nn::Sequence::self_attention(attention, x, span, x.size(2),
                                        own_angles(rotary, x.size(1), tokens_a_frame));
  }
  return attention.proj.forward(
      attend_packed(attention, attention.qkv.forward(x), span, tokens_a_frame, rotary));
}

at::Tensor PatchSequence::attend_packed(const nn::SelfAttention& attention,
                                        const at::Tensor& packed, nn::Span span,
                                        int64_t tokens_a_frame, const at::Tensor& rotary) const {
  at::Tensor angles = own_angles(rotary, packed.size(1), tokens_a_frame);
  if (angles.defined()) {
    angles = angles.flatten(0, 1);
  }
  const at::Tensor ready =
      attention
          .norm_and_rotate(packed.flatten(1, 2).unflatten(-1, {3, attention.num_heads(), -1}),
                           angles)
          .unflatten(1, {packed.size(1), packed.size(2)});  // [B, T, S', 3, H, D]
  const at::Tensor kv = kept({ready}, {tokens_a_frame});
  const at::Tensor out = attend(attention.kernels(), sequences(ready.select(3, 0), span),
                                sequences(kv, span), /*lengths=*/{});
  return out.view({packed.size(0), packed.size(1), packed.size(2), -1});
}

std::vector<at::Tensor> PatchSequence::stream_attention(
    ops::BlockKernels* kernels, const std::vector<at::Tensor>& packed,
    const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
    const std::shared_ptr<const ops::BlockMask>& blocks) const {
  KINORA_CHECK(blocks == nullptr, kInternal, "[model] patches of tokens that attend in windows");
  std::vector<at::Tensor> as_frames;
  std::vector<at::Tensor> queries;
  std::vector<int64_t> own;
  for (const at::Tensor& part : packed) {
    as_frames.push_back(part.unsqueeze(1));
    queries.push_back(part.select(2, 0));
    own.push_back(part.size(1));
  }
  const at::Tensor kv = kept(as_frames, tokens).squeeze(1);
  const at::Tensor lengths =
      text_lengths.defined() ? text_lengths + (kv.size(1) - tokens.back()) : text_lengths;
  return attend(kernels, at::cat(queries, 1), kv, lengths).split_with_sizes(own, 1);
}

at::Tensor PatchSequence::kept(const std::vector<at::Tensor>& packed,
                               const std::vector<int64_t>& tokens) const {
  at::Tensor& all = cache_.keys_and_values(uses_++);
  if (!all.defined()) {
    std::vector<int64_t> shape = packed.front().sizes().vec();
    shape[2] = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    shape[3] = 2;
    all = at::empty(shape, packed.front().options());
  }
  int64_t before = 0;  // in the streams before
  for (size_t i = 0; i < packed.size(); ++i) {
    const int64_t first = before + begin(tokens[i]);
    all.narrow(2, first, packed[i].size(2)).copy_(packed[i].narrow(3, 1, 2));
    before += tokens[i];
  }
  return all;
}

}  // namespace kinora::models
