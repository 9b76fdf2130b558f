#include "kinora/models/transformers/seams.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/layer_norm.h>

namespace kinora::models {
namespace {

constexpr double kNormEpsilon = 1e-6;

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale) {
  const at::Tensor norm = at::layer_norm(x, {x.size(-1)}, {}, {}, kNormEpsilon);
  return at::addcmul(shift, norm, scale + 1.0);
}

/// Vectors [B, T or 1, 1, C] as the kernels see them: [V, C].
at::Tensor rows_of(const at::Tensor& vectors) {
  return vectors.defined() ? vectors.flatten(0, 2) : vectors;
}

}  // namespace

at::Tensor gated_sum(ops::BlockKernels* kernels, const at::Tensor& x, const at::Tensor& gate,
                     const at::Tensor& branch) {
  return kernels == nullptr ? at::addcmul(x, gate, branch)
                            : ops::fused::gated_add(*kernels, x, branch, rows_of(gate));
}

ops::fused::Normed normed_sum(ops::BlockKernels* kernels, const at::Tensor& x,
                              const at::Tensor& gate, const at::Tensor& branch,
                              const at::Tensor& shift, const at::Tensor& scale) {
  if (kernels != nullptr) {
    return ops::fused::seam(*kernels, x, branch, {rows_of(gate), rows_of(scale), rows_of(shift)},
                            x.scalar_type());
  }
  at::Tensor sum = x;
  if (branch.defined()) {
    sum = gate.defined() ? at::addcmul(x, gate, branch) : x + branch;
  }
  return {sum, modulated_norm(sum, shift, scale)};
}

at::Tensor final_norm(ops::BlockKernels* kernels, const at::Tensor& x, const at::Tensor& shift,
                      const at::Tensor& scale) {
  return kernels == nullptr
             ? modulated_norm(x, shift, scale)
             : ops::fused::seam(*kernels, x, {}, {{}, rows_of(scale), rows_of(shift)}, at::kFloat)
                   .h;
}

}  // namespace kinora::models
