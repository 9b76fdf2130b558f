#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/ops/block_kernels.h"

/// Self-attention along one axis of tokens, wherever its tokens lie.
///
/// Shapes: packed projections [G, N, M, 3 C] are G x M sequences of N tokens, whose tokens lie M
/// rows apart. Tokens of a clip [B, T, S] are [B T, S, 1] within frames, [B, T, S] through time,
/// [B, T S, 1] all together. H heads, D = C / H. A HeadRule's rows are in that order.
namespace kinora::ops {

/// What attention leaves for its backward.
struct AttendedTokens {
  at::Tensor ready;  ///< [G, N, M, 2 C]: queries and keys behind the rule; undefined without one
  at::Tensor out;    ///< [G, N, M, C]
  at::Tensor lse;    ///< fp32; undefined where the composed path ran
};

/// keep: whether backward follows. Nothing is differentiated.
/// room: BlockKernels::room() of the linear that reads the result.
/// keys: those that are attended to, with lengths [G]. Where M is not 1: all.
[[nodiscard]] AttendedTokens attend_tokens(BlockKernels& kernels, const at::Tensor& packed,
                                           int64_t heads, const HeadRule& rule, bool keep,
                                           int64_t room = 0, const AttendedKeys& keys = {});

/// Returns the gradient of `packed` and adds those of the rule's weights. forward.ready may be
/// undefined: then it is made again. room: that of the linear that made `packed`.
[[nodiscard]] at::Tensor attend_tokens_backward(BlockKernels& kernels, const at::Tensor& dout,
                                                const at::Tensor& packed,
                                                const AttendedTokens& forward, int64_t heads,
                                                const HeadRule& rule, int64_t room = 0,
                                                const AttendedKeys& keys = {});

/// The same with autograd, for attention outside of a stack of blocks: returns [G, N, M, C].
/// `kernels` is borrowed until backward has run.
[[nodiscard]] at::Tensor self_attention(BlockKernels& kernels, const at::Tensor& packed,
                                        int64_t heads, const HeadRule& rule,
                                        const AttendedKeys& keys = {});

/// Packed projections [R, 3 C] behind the rule, with autograd: for what attends elsewhere. As
/// self_attention(), and BlockKernels::has_head_rules() must be true.
[[nodiscard]] at::Tensor ruled_heads(BlockKernels& kernels, const at::Tensor& packed, int64_t heads,
                                     const HeadRule& rule);

}  // namespace kinora::ops
