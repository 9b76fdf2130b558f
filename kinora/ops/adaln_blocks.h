#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/bucket_hook.h"

/// A stack of adaLN-Zero transformer blocks (Peebles and Xie 2023, section 3.2) with written-out
/// backward: the fast path. models/transformers/dit.cc's DiTBlock is its specification.
namespace kinora::ops {

struct BlockWeights {
  LinearWeights qkv;
  LinearWeights proj;
  LinearWeights fc1;
  LinearWeights fc2;
};

struct BlockStack {
  std::vector<BlockWeights> blocks;
  /// The modulation linears of consecutive blocks, each one product: out = 6 C x its blocks, in the
  /// order shift, scale, gate of attention, then of the MLP.
  std::vector<LinearWeights> modulation;
  int64_t heads = 1;
  Recompute recompute = Recompute::kNone;
  /// The first `recomputed_blocks` blocks are as kBlock, whatever `recompute` says.
  int64_t recomputed_blocks = 0;
  /// Backward overwrites the gradients of weights and adds to those of biases, which are zero.
  bool overwrites_gradients = false;
  /// Told when the weights of a bucket are used; those of modulation[i] and blocks[i] lie in the
  /// buckets modulation_buckets[i] and block_buckets[i]. Empty: nobody.
  BucketHook hook = {};
  std::vector<int64_t> modulation_buckets = {};
  std::vector<int64_t> block_buckets = {};
};

/// Linears on the same input as few products as can be: neighbours whose weights, biases and
/// gradients each lie one behind the other in memory become one.
[[nodiscard]] std::vector<LinearWeights> merge_adjacent(const std::vector<LinearWeights>& linears);

/// Zeros the gradients of all biases.
void zero_bias_gradients(const BlockStack& stack);

/// Runs the blocks and the modulated norm behind the last one.
///
/// x: [B, N, C] in the compute type. c: fp32 [B, C], the condition before SiLU. final_modulation:
/// fp32 [B, 2 C], shift and scale of the last norm. Returns fp32 [B, N, C]. Differentiable in all
/// three; gradients of weights are added in place. `kernels` is borrowed until backward has run.
[[nodiscard]] at::Tensor adaln_blocks(BlockKernels& kernels, BlockStack stack, const at::Tensor& x,
                                      const at::Tensor& c, const at::Tensor& final_modulation);

/// The same without gradients in two parts, for sampling: the vectors of all seams, fp32
/// [B, (6 L + 2) C], which do not depend on x; and the blocks with given vectors.
[[nodiscard]] at::Tensor seam_vectors(BlockKernels& kernels, const BlockStack& stack,
                                      const at::Tensor& c, const at::Tensor& final_modulation);
[[nodiscard]] at::Tensor adaln_blocks(BlockKernels& kernels, BlockStack stack, const at::Tensor& x,
                                      const at::Tensor& vectors);

}  // namespace kinora::ops
