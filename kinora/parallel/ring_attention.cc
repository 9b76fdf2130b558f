#include "kinora/parallel/ring_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "kinora/comm/differentiable.h"
#include "kinora/ops/partial_attention.h"
#include "kinora/parallel/spans.h"

namespace kinora::parallel {
namespace {

// Shapes: n tokens a frame of a part, m of those that do not fill it up.

struct RingAttention {
  Rings rings;
  nn::Span span;
  int64_t tokens_a_frame;

  /// m of an owner's part.
  [[nodiscard]] int64_t num_tokens(int64_t owner, int64_t length) const {
    return std::clamp<int64_t>(tokens_a_frame - owner * length, 0, length);
  }

  /// [B, T, n, H, D] -> [B', N', H, D] without what fills up.
  [[nodiscard]] at::Tensor sequences(const at::Tensor& part, int64_t count) const {
    return by_span(part.narrow(2, 0, count), span);
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& packed, std::vector<at::Tensor>* saved) const;
  [[nodiscard]] at::Tensor backward(const std::vector<at::Tensor>& saved,
                                    const at::Tensor& gradient) const;
};

/// What travels: [2, B, T, n, H, D].
at::Tensor keys_and_values(const at::Tensor& packed) {
  return packed.narrow(3, 1, 2).movedim(3, 0).contiguous();
}

at::Tensor RingAttention::forward(const at::Tensor& packed, std::vector<at::Tensor>* saved) const {
  const int64_t length = packed.size(2);
  const int64_t own = num_tokens(rings.index(), length);
  const at::Tensor q = sequences(packed.select(3, 0), own);
  ops::Attended seen;
  for (PassingParts parts(rings, keys_and_values(packed)); !parts.done(); parts.next()) {
    const int64_t count = num_tokens(parts.owner(), length);
    if (own > 0 && count > 0) {
      ops::merge(&seen, ops::attend(q, sequences(parts.here()[0], count),
                                    sequences(parts.here()[1], count)));
    }
  }
  at::Tensor out = at::zeros(packed.select(3, 0).sizes(), packed.options());  // [B, T, n, H, D]
  *saved = {packed};
  if (own > 0) {
    const at::Tensor attended = seen.out.to(packed.scalar_type()).contiguous();
    out.narrow(2, 0, own).copy_(from_span(attended, span, packed.size(1), own));
    saved->insert(saved->end(), {attended, seen.log_normaliser.contiguous()});
  }
  return out;
}

at::Tensor RingAttention::backward(const std::vector<at::Tensor>& saved,
                                   const at::Tensor& gradient) const {
  const at::Tensor& packed = saved[0];
  const int64_t frames = packed.size(1);
  const int64_t length = packed.size(2);
  const int64_t own = num_tokens(rings.index(), length);
  const at::Tensor q = sequences(packed.select(3, 0), own);
  const at::Tensor incoming = sequences(gradient, own).contiguous();
  const ops::Attended all = own > 0 ? ops::Attended{saved[1], saved[2]} : ops::Attended{};

  at::Tensor to_q =
      at::zeros(q.sizes(), q.options().dtype(c10::promoteTypes(q.scalar_type(), at::kFloat)));
  SummedParts to_others(rings);
  for (PassingParts parts(rings, keys_and_values(packed)); !parts.done(); parts.next()) {
    const int64_t count = num_tokens(parts.owner(), length);
    const at::Tensor share = at::zeros_like(parts.here());
    if (own > 0 && count > 0) {
      const ops::AttendGradients gradients = ops::attend_backward(
          incoming, q, sequences(parts.here()[0], count), sequences(parts.here()[1], count), all);
      to_q.add_(gradients.q);
      share[0].narrow(2, 0, count).copy_(from_span(gradients.k, span, frames, count));
      share[1].narrow(2, 0, count).copy_(from_span(gradients.v, span, frames, count));
    }
    to_others.add(share);
  }
  at::Tensor result = at::zeros_like(packed, packed.options(), at::MemoryFormat::Contiguous);
  if (own > 0) {
    result.select(3, 0).narrow(2, 0, own).copy_(from_span(to_q, span, frames, own));
  }
  result.narrow(3, 1, 2).copy_(to_others.finish().movedim(0, 3));
  return result;
}

}  // namespace

at::Tensor ring_attention(const Rings& rings, const at::Tensor& packed, nn::Span span,
                          int64_t tokens_a_frame) {
  const RingAttention attention = {rings, span, tokens_a_frame};
  const comm::Differentiable function = {
      [attention](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>* saved) {
        return attention.forward(inputs[0], saved);
      },
      [attention](const std::vector<at::Tensor>& saved, const at::Tensor& gradient) {
        return std::vector<at::Tensor>{attention.backward(saved, gradient)};
      }};
  return function({packed});
}

}  // namespace kinora::parallel
