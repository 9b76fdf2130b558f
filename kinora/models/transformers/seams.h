#pragma once

#include <ATen/core/Tensor.h>

/// The seams of blocks on the plain path: the residual stream x [B, T, S', C], vectors
/// [B, T or 1, 1, C].
namespace kinora::models {

/// x + gate * branch.
[[nodiscard]] at::Tensor gated_sum(const at::Tensor& x, const at::Tensor& gate,
                                   const at::Tensor& branch);
/// LayerNorm(x) * (1 + scale) + shift.
[[nodiscard]] at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift,
                                        const at::Tensor& scale);
/// x / rms(x) * (1 + scale) + shift.
[[nodiscard]] at::Tensor modulated_rms_norm(const at::Tensor& x, const at::Tensor& shift,
                                            const at::Tensor& scale);

}  // namespace kinora::models
