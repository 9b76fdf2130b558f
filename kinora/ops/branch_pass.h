#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/block_stack.h"
#include "kinora/ops/fp8.h"
#include "kinora/ops/low_rank_linears.h"
#include "kinora/ops/token_attention.h"

/// One branch of a block, forward and backward, between the seams that block_stack.cc runs. For
/// this room only.
///
/// Shapes: R rows of tokens, C width, B batch, L text tokens.
namespace kinora::ops {

/// What all branches of a pass share.
struct BranchPass {
  BlockKernels& kernels;
  bool keeps = false;                  ///< what backward needs
  bool trains = false;                 ///< keeps, or is computed again to keep it
  bool overwrites_gradients = false;   ///< those of weights
  bool wants_dh = true;                ///< run_backward: the gradient of what the branch reads
  at::Tensor text{};                   ///< [B, L, C]
  at::Tensor text_lengths{};           ///< int32 [B]; undefined: all tokens are read
  int64_t batch = 0;                   ///< B
  at::Tensor text_grad{};              ///< fp32 [B L, C], added to; undefined: not wanted
  UpdateGradients update_gradients{};  ///< of the block that is on its way back
  LinearRanks ranks{};
  /// Gradients of weights that wait to be computed beside an exchange between ranks.
  std::vector<std::function<void()>> late{};

  /// The number by which fp8 knows a linear: none where nothing is trained, and its scales and
  /// quantised weights are those of training.
  [[nodiscard]] int64_t number(const LinearWeights* linear) const {
    const bool is_known = trains || (kernels.fp8() != nullptr && kernels.fp8()->is_for_sampling());
    return is_known && linear != nullptr ? linear->number : -1;
  }
  [[nodiscard]] Consumer consumer(const LinearWeights* linear) const {
    return {number(linear), linear != nullptr ? kernels.room(*linear) : 0};
  }
};

/// What cross-attention keeps of the tokens that it reads.
struct KeptText {
  Operand text{};       ///< what kv reads: [B L, C]
  at::Tensor packed{};  ///< keys and values: [B L, 2 C]
  at::Tensor keys{};    ///< keys behind their norm: [B L, C]; undefined without one
  at::Tensor out{};     ///< what attention to them has made: [R, C]
  at::Tensor lse{};     ///< fp32; undefined where the composed path ran
};

/// What a branch keeps; undefined where it is computed again. Rows [R, ...].
struct KeptBranch {
  at::Tensor x;  ///< the residual stream where the branch leaves it
  NormStatistics statistics{};
  Operand h{};  ///< what the body reads
  // Of attention.
  at::Tensor packed{};        ///< queries, keys and values; of cross-attention the queries
  AttendedTokens attended{};  ///< of cross-attention `ready` has the queries alone
  KeptText text{};
  KeptText first_text{};  ///< of CrossAttentionBody::first
  // Of an MLP.
  at::Tensor hidden_pre{};
  Operand attention_last{};  ///< of a ParallelBody's attention; `last` is its MLP's
  Operand last{};            ///< the input of the last linear
  at::Tensor leaf{};         ///< a function's input, also of attention by something else
  at::Tensor graph{};        ///< and its result, with its graph
  at::Tensor result{};       ///< what the branch adds to the stream, before its gate
};

/// All of it but graphs of autograd, which are `leaf` and `graph`.
void push_tensors(KeptBranch& kept, std::vector<at::Tensor*>& tensors);

/// All linears, in order of use; of a function none.
[[nodiscard]] std::vector<const LinearWeights*> linears_of(const Branch& branch);
/// The linear that reads what the branch reads of the stream, and the one that makes its result;
/// null: a function's, or none. stream: of a JointAttentionBody.
[[nodiscard]] const LinearWeights* first_linear(const Branch& branch, size_t stream);
[[nodiscard]] const LinearWeights* last_linear(const Branch& branch, size_t stream);
/// Whether the result is one product.
[[nodiscard]] bool ends_in_product(const Branch& branch);
/// The gradients that backward adds to even where those of weights are overwritten.
[[nodiscard]] std::vector<at::Tensor> added_gradients(const Branch& branch);

/// Where ranks divide rows: what `reader` (null: a function) reads of a stream, from this rank's
/// part.
[[nodiscard]] Operand gathered_input(const BranchPass& pass, const at::Tensor& part,
                                     const LinearWeights* reader);
/// The same of the gradient of what `producer` has made.
[[nodiscard]] ResultGrad gathered_grad(BranchPass& pass, const at::Tensor& part,
                                       const LinearWeights* producer);
/// Computes the gradients of weights that wait.
void compute_late(BranchPass& pass);

/// Whether a kept result stands for all that the branch computes.
[[nodiscard]] bool is_kept(const Branch& branch);
/// From h to the input of the last linear. second: what stream 1 keeps, of a JointAttentionBody.
void run_inner(const BranchPass& pass, const Branch& branch, KeptBranch& kept, KeptBranch& second);
/// The part of it that reads the text alone: what kept.text and first_text have packed.
void pack_text(const BranchPass& pass, const CrossAttentionBody& body, KeptBranch& kept);
/// From there to the result, of one stream; or the kept one. Where ranks divide rows, of the own.
void run_last(const BranchPass& pass, const Branch& branch, KeptBranch& kept, size_t stream);

/// Drops the inputs of linears that backward does not read: of those that are frozen.
void forget_unread(const Branch& branch, KeptBranch& kept, size_t stream);
/// Drops what kElementwise and kMlp compute again, and makes it again; h is the caller's.
void forget_inner(Recompute level, const Branch& branch, KeptBranch& kept);
/// Of a JointAttentionBody: drops what attention has made, where the inputs of the linears behind
/// it are kept, which have it.
void forget_attended(const Branch& branch, const std::array<KeptBranch*, 2>& kept);
void remember_inner(const BranchPass& pass, const Branch& branch, KeptBranch& kept);

/// The gradient of h, undefined where it is not wanted, and of the own rows where ranks divide
/// them; adds those of weights, which may wait in pass.late, and those of updates in
/// pass.update_gradients. Drops what it has read.
[[nodiscard]] at::Tensor run_backward(BranchPass& pass, const Branch& branch, ResultGrad dresult,
                                      KeptBranch& kept);
/// The same of a JointAttentionBody, by stream: a stream that ends has no gradient of a result.
[[nodiscard]] std::array<at::Tensor, 2> run_joint_backward(BranchPass& pass, const Branch& branch,
                                                           std::array<ResultGrad, 2> dresults,
                                                           std::array<KeptBranch*, 2> kept);

// Low-rank updates of a linear: x [R, in], its low = x A^T of each, one beside the other and maybe
// more columns behind them, y [R, out].

[[nodiscard]] at::Tensor low_of(const LinearWeights& linear, const at::Tensor& x);
/// What they add to y: scale low B^T.
[[nodiscard]] at::Tensor raised(const LinearWeights& linear, const at::Tensor& low);
/// Adds the factors' gradients; returns what they add to that of x.
[[nodiscard]] at::Tensor update_backward(const LinearWeights& linear, const at::Tensor& dy,
                                         const at::Tensor& x, const at::Tensor& low);
/// The gradients of all factors.
void push_update_gradients(const LinearWeights& linear, std::vector<at::Tensor>& gradients);

}  // namespace kinora::ops
