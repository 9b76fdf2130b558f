#include "kinora/parallel/sequence_dsp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>

#include "kinora/comm/differentiable.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, P ranks, F = ceil(B T / P) frames a rank.

namespace kinora::parallel {

at::Tensor DspSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                               nn::Span span, int64_t tokens_a_frame,
                               const at::Tensor& rotary) const {
  const int64_t frames = x.size(1);
  KINORA_CHECK(span == nn::Span::kFrame || frames == 1, kConfig,
               "[sequence] dsp switches between space and time, but this model attends over all ",
               frames, " frames at once. Hint: parallel.sequence_scheme auto");
  const int64_t num_frames = x.size(0) * frames;
  const int64_t own_frames = ceil_div(num_frames, group().size());
  const int64_t missing = own_frames * group().size() - num_frames;
  at::Tensor parts = x.to(attention.qkv.weight.value.scalar_type()).flatten(0, 1);
  if (missing > 0) {
    parts = at::constant_pad_nd(parts, {0, 0, 0, 0, 0, missing});
  }
  const at::Tensor whole =
      comm::all_to_all(group(), parts, /*split=*/0, /*joined=*/1);  // [F, P s, C]

  at::Tensor angles;
  if (rotary.defined()) {
    const at::Tensor frame = at::arange(own_frames, rotary.options().dtype(at::kLong))
                                 .add_(group().rank() * own_frames)
                                 .remainder_(rotary.size(0));
    angles = rotary.index_select(0, frame).expand({own_frames, tokens_a_frame, -1});
  }
  const at::Tensor out = attention.forward(first_of(whole, 1, tokens_a_frame), angles);
  const at::Tensor filled = filled_up(out.unsqueeze(1), whole.size(1)).squeeze(1);
  return first_of(comm::all_to_all(group(), filled, /*split=*/1, /*joined=*/0), 0,  // [P F, s, C]
                  num_frames)
      .unflatten(0, {-1, frames});
}

}  // namespace kinora::parallel
