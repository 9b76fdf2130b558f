#include "kinora/parallel/sequence_usp.h"

#include <utility>

#include "kinora/comm/differentiable.h"
#include "kinora/parallel/ring_attention.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, U neighbours, H' = H / U.

namespace kinora::parallel {

UspSequence::UspSequence(comm::Group group, comm::Group neighbours, Rings rings)
    : ShardedSequence(std::move(group)),
      neighbours_(std::move(neighbours)),
      rings_(std::move(rings)) {}

at::Tensor UspSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                               nn::Span span, int64_t tokens_a_frame,
                               const at::Tensor& rotary) const {
  check_heads("ulysses", attention, neighbours_.size());
  const at::Tensor packed =
      comm::all_to_all(neighbours_, project(attention, x, tokens_a_frame, rotary), /*split=*/4,
                       /*joined=*/2);  // [B, T, U s, 3, H', D]
  const at::Tensor out =
      rings_.size() == 1
          ? filled_up(attend_by_heads(attention, first_of(packed, 2, tokens_a_frame), span),
                      packed.size(2))
                .unflatten(3, {packed.size(4), -1})
          : ring_attention(rings_, packed, span, tokens_a_frame);  // [B, T, U s, H', D]
  return attention.proj.forward(
      comm::all_to_all(neighbours_, out, /*split=*/2, /*joined=*/3).flatten(3));
}

}  // namespace kinora::parallel
