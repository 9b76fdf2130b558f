#include "kinora/parallel/gathered_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "kinora/comm/differentiable.h"
#include "kinora/parallel/ring.h"

namespace kinora::parallel {
namespace {

/// A weight [.., I] as [O, I]; a copy where its rows are not evenly spaced.
at::Tensor as_matrix(const at::Tensor& weight) {
  return weight.dim() == 2 ? weight : weight.flatten(0, -2);
}

/// Zeros to add up the ranks' shares of a weight's gradient in: of 16-bit types in fp32.
at::Tensor zeros_like_wide(const at::Tensor& weight) {
  return at::zeros(weight.sizes(),
                   weight.options().dtype(c10::promoteTypes(weight.scalar_type(), at::kFloat)));
}

at::Tensor gather_forward(const Rings& rings, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias) {
  const at::Tensor matrix = as_matrix(weight);
  const at::Tensor offsets = bias.flatten();
  at::Tensor output =
      at::empty({rings.size(), x.size(0), matrix.size(0)}, x.options());  // [W, R, O]
  for (PassingParts parts(rings, x.contiguous()); !parts.done(); parts.next()) {
    at::Tensor rows = output[parts.owner()];
    at::addmm_out(rows, offsets, parts.here(), matrix.t());
  }
  return output;
}

std::vector<at::Tensor> gather_backward(const Rings& rings, const at::Tensor& x,
                                        const at::Tensor& weight, const at::Tensor& gradient) {
  const at::Tensor matrix = as_matrix(weight);
  const at::Tensor to_weight = zeros_like_wide(matrix);
  SummedParts to_x(rings);
  for (PassingParts parts(rings, x.contiguous()); !parts.done(); parts.next()) {
    const at::Tensor incoming = gradient[parts.owner()];  // [R, O]
    to_x.add(at::mm(incoming, matrix));
    to_weight.add_(at::mm(incoming.t(), parts.here()));
  }
  const at::Tensor to_bias = gradient.sum(at::IntArrayRef({0, 1}));
  return {to_x.finish(), to_weight.view(weight.sizes()).to(weight.scalar_type()),
          to_bias.view(weight.sizes().slice(0, weight.dim() - 1))};
}

}  // namespace

at::Tensor gather_linear(const comm::Group& group, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias) {
  const Rings rings = {group, {}};
  const comm::Differentiable function = {
      [rings](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>* saved) {
        *saved = {inputs[0], inputs[1]};
        return gather_forward(rings, inputs[0], inputs[1], inputs[2]);
      },
      [rings](const std::vector<at::Tensor>& saved, const at::Tensor& gradient) {
        return gather_backward(rings, saved[0], saved[1], gradient);
      }};
  return function({x, weight, bias});
}

}  // namespace kinora::parallel
