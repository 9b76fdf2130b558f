#include "kinora/parallel/sequence_fastseq.h"

#include "kinora/comm/differentiable.h"
#include "kinora/ops/parameter.h"
#include "kinora/parallel/gathered_linear.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, P ranks, H' = H / P, R = B T s.

namespace kinora::parallel {

at::Tensor FastSeqSequence::own_heads(const at::Tensor& x, const ops::LinearWeights& qkv,
                                      int64_t num_heads, int64_t tokens_a_frame) const {
  check_heads("fastseq", num_heads, group().size());
  const int64_t heads = num_heads / group().size();
  // The packed weight's rows are (3, H, D) major: those of some heads are three slices.
  const auto of_heads = [&](const at::Tensor& rows) {
    return rows.unflatten(0, {3, num_heads, -1}).narrow(1, group().rank() * heads, heads);
  };
  // Backward adds the slices' gradients to the parameter's.
  const auto slices = [&](const at::Tensor& value, const at::Tensor& gradient) {
    return ops::with_gradient(of_heads(value), gradient.defined() ? of_heads(gradient) : gradient);
  };
  const at::Tensor rows = x.to(qkv.weight.scalar_type()).flatten(0, -2);  // [R, C]
  const at::Tensor gathered = gather_linear(group(), rows, slices(qkv.weight, qkv.weight_grad),
                                            slices(qkv.bias, qkv.bias_grad));  // [P, R, 3 H' D]
  return first_of(gathered.view({group().size(), x.size(0), x.size(1), x.size(2), -1})
                      .permute({1, 2, 0, 3, 4})
                      .flatten(2, 3),
                  2, tokens_a_frame)
      .unflatten(3, {3, heads, -1});
}

at::Tensor FastSeqSequence::back(const at::Tensor& out, int64_t part_length) const {
  return comm::all_to_all(group(), filled_up(out, group().size() * part_length), /*split=*/2,
                          /*joined=*/3);
}

at::Tensor FastSeqSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                   nn::Span span, int64_t tokens_a_frame,
                                   const at::Tensor& rotary) const {
  const int64_t frames = x.size(1);
  const at::Tensor packed =
      own_heads(x, attention.qkv.weights(), attention.num_heads(), tokens_a_frame);
  const at::Tensor turned = from_span(
      attention.norm_and_rotate(by_span(packed, span),
                                angles_by_span(rotary, span, x.size(0), frames, tokens_a_frame)),
      span, frames, tokens_a_frame);
  return attention.proj.forward(back(attend_by_heads(attention, turned, span), x.size(2)));
}

std::vector<at::Tensor> FastSeqSequence::unmade_attention(
    ops::BlockKernels* kernels, const std::vector<nn::UnmadeStream>& streams,
    const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
    const std::shared_ptr<const ops::BlockMask>& blocks) const {
  std::vector<at::Tensor> packed;
  for (size_t i = 0; i < streams.size(); ++i) {
    const auto& [x, qkv, num_heads, ready] = streams[i];
    const at::Tensor frame = cleared_stream(x, tokens[i]).unsqueeze(1);
    packed.push_back(ready(own_heads(frame, qkv, num_heads, tokens[i]).squeeze(1)));
  }
  std::vector<at::Tensor> out = nn::attend_streams(kernels, packed, text_lengths, blocks);
  for (size_t i = 0; i < out.size(); ++i) {
    const at::Tensor part = back(out[i].unsqueeze(1), streams[i].x.size(1)).squeeze(1);
    out[i] = cleared_stream(part, tokens[i]);
  }
  return out;
}

}  // namespace kinora::parallel
