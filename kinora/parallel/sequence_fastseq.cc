#include "kinora/parallel/sequence_fastseq.h"

#include "kinora/comm/differentiable.h"
#include "kinora/ops/parameter.h"
#include "kinora/parallel/gathered_linear.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, P ranks, H' = H / P, R = B T s.

namespace kinora::parallel {

at::Tensor FastSeqSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                   nn::Span span, int64_t tokens_a_frame,
                                   const at::Tensor& rotary) const {
  check_heads("fastseq", attention.num_heads(), group().size());
  const int64_t heads = attention.num_heads() / group().size();
  // The packed weight's rows are (3, H, D) major: those of some heads are three slices.
  const auto of_heads = [&](const at::Tensor& rows) {
    return rows.unflatten(0, {3, attention.num_heads(), -1})
        .narrow(1, group().rank() * heads, heads);
  };
  // Backward adds the slices' gradients to the parameter's.
  const auto slices = [&](const nn::Parameter& parameter) {
    return ops::with_gradient(of_heads(parameter.value),
                              parameter.grad.defined() ? of_heads(parameter.grad) : parameter.grad);
  };
  const at::Tensor rows = x.to(attention.qkv.weight.value.scalar_type()).flatten(0, -2);  // [R, C]
  const at::Tensor gathered = gather_linear(group(), rows, slices(attention.qkv.weight),
                                            slices(attention.qkv.bias));  // [P, R, 3 H' D]
  const int64_t frames = x.size(1);
  const at::Tensor packed =
      first_of(gathered.view({group().size(), x.size(0), frames, x.size(2), -1})
                   .permute({1, 2, 0, 3, 4})
                   .flatten(2, 3),
               2, tokens_a_frame)
          .unflatten(3, {3, heads, -1});  // [B, T, S, 3, H', D]
  const at::Tensor turned = from_span(
      attention.norm_and_rotate(by_span(packed, span),
                                angles_by_span(rotary, span, x.size(0), frames, tokens_a_frame)),
      span, frames, tokens_a_frame);
  const at::Tensor out = filled_up(attend_by_heads(attention, turned, span),
                                   group().size() * x.size(2));  // [B, T, P s, H' D]
  return attention.proj.forward(comm::all_to_all(group(), out, /*split=*/2, /*joined=*/3));
}

}  // namespace kinora::parallel
