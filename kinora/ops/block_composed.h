#pragma once

#include "kinora/ops/block_kernels.h"

/// BlockKernels' parts as ATen calls, on any device: the portable path and the specification of the
/// kernels. For the files of this room only.
namespace kinora::ops::composed {

[[nodiscard]] SeamForward seam(const at::Tensor& x, const at::Tensor& branch,
                               const SeamVectors& vectors, at::ScalarType h_type);
[[nodiscard]] SeamBackward seam_backward(const at::Tensor& dh, const at::Tensor& dx_out,
                                         const at::Tensor& x, const NormStatistics& statistics,
                                         const at::Tensor& branch, const SeamVectors& vectors,
                                         const SeamVectors& grads,
                                         const at::Tensor& branch_bias_grad);

[[nodiscard]] at::Tensor gated_add(const at::Tensor& x, const at::Tensor& branch,
                                   const SeamVectors& vectors);
[[nodiscard]] at::Tensor gated_add_backward(const at::Tensor& dout, const at::Tensor& branch,
                                            const SeamVectors& vectors,
                                            const at::Tensor& gate_grad);

/// As BlockKernels'.
[[nodiscard]] at::Tensor norm_rows(const HeadRule& rule, const at::Tensor& in,
                                   const at::Tensor& weight);
void norm_rows_backward(const HeadRule& rule, const at::Tensor& in, const at::Tensor& weight,
                        const at::Tensor& grad, const at::Tensor& weight_grad);

/// [B, N, H, D]. fused: through libtorch's choice of kernel; else softmax(Q K^T) V in steps.
[[nodiscard]] at::Tensor attention(const HeadTensors& in, bool fused);
void attention_backward(const at::Tensor& dout, const HeadTensors& in, const HeadTensors& grads,
                        bool fused);

/// out = x W^T + bias.
void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
            const at::Tensor& out);
[[nodiscard]] at::Tensor gelu(const at::Tensor& pre);
/// dout * GELU_tanh'(pre).
[[nodiscard]] at::Tensor gelu_backward(const at::Tensor& dout, const at::Tensor& pre);

}  // namespace kinora::ops::composed
