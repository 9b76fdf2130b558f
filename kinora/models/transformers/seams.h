#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/ops/fused.h"

/// The seams of blocks, on the residual stream x [B, T, S', C], of vectors [B, T or 1, 1, C]: by
/// kernels, or where they are null by ATen's calls.
namespace kinora::models {

/// x + gate * branch.
[[nodiscard]] at::Tensor gated_sum(ops::BlockKernels* kernels, const at::Tensor& x,
                                   const at::Tensor& gate, const at::Tensor& branch);
/// x + gate * branch (gate undefined: x + branch; branch undefined: x) and its modulated norm
/// LayerNorm(.) * (1 + scale) + shift.
[[nodiscard]] ops::fused::Normed normed_sum(ops::BlockKernels* kernels, const at::Tensor& x,
                                            const at::Tensor& gate, const at::Tensor& branch,
                                            const at::Tensor& shift, const at::Tensor& scale);
/// The modulated norm in fp32.
[[nodiscard]] at::Tensor final_norm(ops::BlockKernels* kernels, const at::Tensor& x,
                                    const at::Tensor& shift, const at::Tensor& scale);

}  // namespace kinora::models
