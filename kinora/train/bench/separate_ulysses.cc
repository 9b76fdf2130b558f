#include "kinora/train/bench/separate_ulysses.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <vector>

#include "kinora/comm/differentiable.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, P ranks, H' = H / P.

namespace kinora::train {

at::Tensor SeparateUlysses::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                   nn::Span span, int64_t tokens_a_frame,
                                   const at::Tensor& rotary) const {
  parallel::check_heads("ulysses4", attention.num_heads(), group().size());
  std::vector<at::Tensor> parts =
      project(attention, x, tokens_a_frame, rotary).unbind(3);  // each [B, T, s, H, D]
  for (at::Tensor& part : parts) {
    const at::Tensor whole =
        comm::all_to_all(group(), part, /*split=*/3, /*joined=*/2);  // [B, T, P s, H', D]
    part = parallel::by_span(whole.narrow(2, 0, tokens_a_frame), span).transpose(1, 2);
  }
  const at::Tensor out =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2);
  const at::Tensor all = parallel::filled_up(
      parallel::from_span(out, span, x.size(1), tokens_a_frame), group().size() * x.size(2));
  return attention.proj.forward(
      comm::all_to_all(group(), all, /*split=*/2, /*joined=*/3).flatten(3));
}

}  // namespace kinora::train
