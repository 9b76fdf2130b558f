#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/ops/block_kernels.h"

/// The parts of transformer blocks as differentiable functions: BlockKernels with autograd. Models
/// whose blocks have one order of parts each are written with these; ops::adaln_blocks writes out
/// the backward of a whole stack.
///
/// Gradients of weights are added in place, where LinearWeights has room for them. `kernels` is
/// borrowed until backward has run, and says what is computed again (BlockKernels::set_recompute);
/// the norms where a linear or MLP reads the result of seam() itself. Everything can be recorded in
/// a CUDA graph: nothing waits for the device but the first call of a shape, which times.
///
/// Shapes: B batch, R rows of tokens, C width, V vectors of R / V consecutive rows each, H heads,
/// D = C / H.
namespace kinora::ops::fused {

/// x W^T + bias: [..., in] -> [..., out]. x: of the weight's type.
[[nodiscard]] at::Tensor linear(BlockKernels& kernels, const at::Tensor& x,
                                const LinearWeights& weights);

/// fc2(GELU_tanh(fc1(x))).
[[nodiscard]] at::Tensor mlp(BlockKernels& kernels, const at::Tensor& x, const LinearWeights& fc1,
                             const LinearWeights& fc2);

/// Modulated LayerNorm of a sum.
struct Normed {
  at::Tensor x;  ///< x + gate * branch
  at::Tensor h;  ///< LayerNorm(x) * (1 + scale) + shift
};
/// x, branch: [..., C] with R rows; without branch x stays as it is. Vectors: [V, C]; without gate
/// x + branch. h_type: x's type or fp32. Who goes on with the x that is returned saves a sum of
/// gradients.
[[nodiscard]] Normed seam(BlockKernels& kernels, const at::Tensor& x, const at::Tensor& branch,
                          const SeamVectors& vectors, at::ScalarType h_type);

/// x + gate * branch; gate: fp32 [V, C].
[[nodiscard]] at::Tensor gated_add(BlockKernels& kernels, const at::Tensor& x,
                                   const at::Tensor& branch, const at::Tensor& gate);

/// Self-attention of packed projections [G, N, M, 3 C] along N: in each of G x M sequences of N
/// tokens, whose tokens lie M rows apart. Tokens of a clip [B, T, S] are [B T, S, 1] within frames,
/// [B, T, S] through time, [B, T S, 1] all together. The rule's rows are in that order. Returns
/// [G, N, M, C].
[[nodiscard]] at::Tensor self_attention(BlockKernels& kernels, const at::Tensor& qkv, int64_t heads,
                                        const HeadRule& rule);

/// Attention of q [B, N, C] to packed kv [B, L, 2 C], of which the first lengths[b] (int32 [B])
/// tokens count; a sample without any gives zeros. Returns [B, N, C].
[[nodiscard]] at::Tensor cross_attention(BlockKernels& kernels, const at::Tensor& q,
                                         const at::Tensor& kv, const at::Tensor& lengths,
                                         int64_t heads);

}  // namespace kinora::ops::fused
