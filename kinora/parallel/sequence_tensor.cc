#include "kinora/parallel/sequence_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>

#include "kinora/comm/differentiable.h"
#include "kinora/core/error.h"
#include "kinora/ops/parameter.h"
#include "kinora/parallel/gathered_linear.h"
#include "kinora/parallel/spans.h"

// Shapes: s tokens a frame here, P ranks, H' = H / P, R = B T s.

namespace kinora::parallel {
namespace {

/// A part of a parameter, whose gradient backward adds to that part of the parameter's.
template <typename Part>
at::Tensor part_of(const nn::Parameter& parameter, const Part& part) {
  return ops::with_gradient(part(parameter.value),
                            parameter.grad.defined() ? part(parameter.grad) : parameter.grad);
}

at::Tensor whole_of(const nn::Parameter& parameter) {
  return ops::with_gradient(parameter.value, parameter.grad);
}

/// This rank's share of dim `dim`.
at::Tensor share(const comm::Group& group, const at::Tensor& tensor, int64_t dim) {
  const int64_t length = tensor.size(dim) / group.size();
  return tensor.narrow(dim, group.rank() * length, length);
}

/// [.., C] as rows [R, C] in the weight's type.
at::Tensor rows_for(const nn::Linear& linear, const at::Tensor& x) {
  return x.to(linear.weight.value.scalar_type()).flatten(0, -2);
}

/// Some heads' attention to all tokens, from a part x of them: [B, T, P s, H' D].
at::Tensor gather_and_attend(const comm::Group& group, const nn::SelfAttention& attention,
                             const at::Tensor& x, nn::Span span, int64_t tokens_a_frame,
                             const at::Tensor& rotary) {
  // The packed weight's rows are (3, H, D) major: those of some heads are three slices.
  const auto of_heads = [&](const at::Tensor& rows) {
    return share(group, rows.unflatten(0, {3, attention.num_heads(), -1}), 1);
  };
  const at::Tensor gathered =
      gather_linear(group, rows_for(attention.qkv, x), part_of(attention.qkv.weight, of_heads),
                    part_of(attention.qkv.bias, of_heads));  // [P, R, 3 H' D]
  const int64_t frames = x.size(1);
  const at::Tensor packed =
      first_of(gathered.view({group.size(), x.size(0), frames, x.size(2), -1})
                   .permute({1, 2, 0, 3, 4})
                   .flatten(2, 3),
               2, tokens_a_frame)
          .unflatten(3, {3, attention.num_heads() / group.size(), -1});  // [B, T, S, 3, H', D]
  const at::Tensor ready = from_span(
      attention.norm_and_rotate(by_span(packed, span),
                                angles_by_span(rotary, span, x.size(0), frames, tokens_a_frame)),
      span, frames, tokens_a_frame);
  return filled_up(attend_by_heads(attention, ready, span), group.size() * x.size(2));
}

}  // namespace

at::Tensor FastSeqSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                   nn::Span span, int64_t tokens_a_frame,
                                   const at::Tensor& rotary) const {
  check_heads("fastseq", attention.num_heads(), group().size());
  const at::Tensor out =
      gather_and_attend(group(), attention, x, span, tokens_a_frame, rotary);  // [B, T, P s, H' D]
  return attention.proj.forward(comm::all_to_all(group(), out, /*split=*/2, /*joined=*/3));
}

at::Tensor MegatronSequence::attend(const nn::SelfAttention& attention, const at::Tensor& x,
                                    nn::Span span, int64_t tokens_a_frame,
                                    const at::Tensor& rotary) const {
  check_heads("megatron", attention.num_heads(), group().size());
  const at::Tensor out = gather_and_attend(group(), attention, x, span, tokens_a_frame, rotary)
                             .unflatten(2, {group().size(), x.size(2)})
                             .permute({2, 0, 1, 3, 4})
                             .flatten(1, 3);  // [P, R, H' D]
  const at::Tensor columns = part_of(
      attention.proj.weight, [&](const at::Tensor& weight) { return share(group(), weight, 1); });
  return (linear_scatter(group(), out, columns) + whole_of(attention.proj.bias)).view(x.sizes());
}

at::Tensor MegatronSequence::mlp(const nn::Mlp& mlp, const at::Tensor& x) const {
  const int64_t hidden = mlp.fc1.bias.value.size(0);
  KINORA_CHECK(hidden % group().size() == 0, kConfig, "[sequence] megatron divides the ", hidden,
               " columns of the MLP among ", group().size(),
               " ranks, which does not come out even.");
  const auto rows = [&](const at::Tensor& whole) { return share(group(), whole, 0); };
  const at::Tensor wide =
      at::gelu(gather_linear(group(), rows_for(mlp.fc1, x), part_of(mlp.fc1.weight, rows),
                             part_of(mlp.fc1.bias, rows)),
               "tanh");  // [P, R, hidden / P]
  const at::Tensor columns =
      part_of(mlp.fc2.weight, [&](const at::Tensor& weight) { return share(group(), weight, 1); });
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = mlp.fc2.bias.value.size(0);
  return (linear_scatter(group(), wide, columns) + whole_of(mlp.fc2.bias)).view(shape);
}

}  // namespace kinora::parallel
