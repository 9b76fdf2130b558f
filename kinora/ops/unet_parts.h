#pragma once

#include <ATen/core/Tensor.h>

/// What a U-Net has between its convolutions and products, differentiable: by kernels of ours on a
/// GPU, in fp32, bf16 and fp16; else composed of ATen's calls, which are the specification.
namespace kinora::ops {

/// u GELU(v), exact: uv [..., 2 W], u and then v in each row -> [..., W] (kernels/gated_gelu.h).
[[nodiscard]] at::Tensor gated_gelu(const at::Tensor& uv);
/// Its gradient of uv [..., 2 W], from that of the result, dg [..., W]. Not differentiable.
[[nodiscard]] at::Tensor gated_gelu_backward(const at::Tensor& dg, const at::Tensor& uv);

/// x + y + bias: [B, C, spatial...], bias [C]. Laid out as x (kernels/residual_sum.h).
[[nodiscard]] at::Tensor residual_sum(const at::Tensor& x, const at::Tensor& y,
                                      const at::Tensor& bias);

/// x + bias in x's memory: x [B, C, spatial...], bias [C] (kernels/residual_sum.h).
[[nodiscard]] at::Tensor add_bias(const at::Tensor& x, const at::Tensor& bias);

/// out = x + bias, or x + y + bias where y is defined, without gradients: out, x and y [B, C,
/// spatial...], of which out may be one, bias [C].
void add_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& y,
              const at::Tensor& bias);

}  // namespace kinora::ops
