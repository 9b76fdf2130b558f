#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/ops/kept_result.h"
#include "kinora/ops/linear_weights.h"

/// Consecutive transformer blocks with written-out forward and backward: the fast path. What a
/// block computes is data: a list of branches off the residual stream, each
///
///     x += gate * body(LayerNorm(x) * (1 + scale) + shift)
///
/// or with an RMSNorm.
/// A DiT block (Peebles and Xie 2023, section 3.2) is two of them, self-attention and MLP. Where
/// text has a stream of its own (Esser et al. 2024), a branch is off one of two streams, and
/// attention among the tokens of both is off either. The plain paths of the models are the
/// specification. All blocks are one autograd node, so that the
/// sum behind a branch and the norm before the next are one kernel, operands pass between kernels
/// in 16 or 8 bits, and what is kept is chosen in one place.
///
/// Shapes: R rows of tokens of a stream, C width, B batch, L text tokens, V vectors of R / V
/// consecutive rows each.
namespace kinora::ops {

/// Attention among the tokens of each sequence: token_attention.h's, of tokens [R / (N M), N, M].
struct SelfAttentionBody {
  LinearWeights qkv;  ///< [3 C, C]
  LinearWeights proj;
  int64_t heads = 1;
  int64_t length = 0;  ///< N
  int64_t stride = 1;  ///< M
  HeadRule rule{};
  AttendedKeys keys{};  ///< of a sequence; where M is not 1: all
  /// Attention by something else, such as among tokens of several ranks: a differentiable, pure
  /// function of what qkv makes, [R, 3 C], to what proj reads, [R, C]; where qkv has no weight, of
  /// what it would read. What it adds to are the gradients of `rule` and `gradients`. Empty: here.
  std::function<at::Tensor(const at::Tensor& packed)> attend{};
  std::vector<at::Tensor> gradients{};
};

/// Attention among the tokens of both streams: in each sample N tokens of stream 0, then L of
/// stream 1.
struct JointAttentionBody {
  struct Part {
    LinearWeights qkv;   ///< [3 C, C]
    LinearWeights proj;  ///< without weight: the stream ends here
    HeadRule rule{};     ///< of the tokens of a sample
  };
  std::array<Part, 2> parts;
  int64_t heads = 1;
  AttendedKeys keys{};  ///< of N + L
  /// As SelfAttentionBody's, of both streams.
  std::function<std::array<at::Tensor, 2>(const std::array<at::Tensor, 2>& packed)> attend{};
  std::vector<at::Tensor> gradients{};
};

/// Attention to the pass's text.
struct CrossAttentionBody {
  /// The first tokens of the text, such as those of pictures, that have keys and values of their
  /// own: attention to these alone is added to that to the others, before proj.
  struct FirstTokens {
    int64_t count = 0;
    LinearWeights kv{};     ///< [2 C, C]
    at::Tensor k_weight{};  ///< of their keys' norm, as rule.k_weight; undefined: there is none
    at::Tensor k_weight_grad{};
  };

  LinearWeights q;
  LinearWeights kv;  ///< [2 C, C]
  LinearWeights proj;
  int64_t heads = 1;
  HeadRule rule{};  ///< norms of all heads together; nothing turns
  FirstTokens first{};
  /// What kv makes of the text, where that was done before (packed_text()): [B L, 2 C], then
  /// StackInputs::text is not read. Without gradients, and without `first`.
  at::Tensor text_packed{};
  /// Keys and values beside the text's, [B, T, 2 C]: attention to them alone times beside_scale is
  /// added to that to the text, before proj (Ye et al. 2023, "IP-Adapter", eq. 5). Undefined: none.
  /// Without gradients.
  at::Tensor beside_packed{};
  double beside_scale = 1.0;
};

/// fc2(GELU_tanh(fc1(x))).
struct MlpBody {
  LinearWeights fc1;
  LinearWeights fc2;
};

/// Attention and MLP beside each other, whose results add up (Dehghani et al. 2023, "Scaling vision
/// transformers to 22 billion parameters", section 2). qkv and fc1, which read the same, are parts
/// of one linear, and so are proj, which has no bias, and fc2.
struct ParallelBody {
  SelfAttentionBody attention;
  MlpBody mlp;
};

/// fc2(u * GELU(v)) with [u, v] = fc1(x) (Shazeer 2020, "GLU variants improve transformer").
struct GatedMlpBody {
  LinearWeights fc1;  ///< [2 W, C]
  LinearWeights fc2;  ///< [C, W]
};

/// Anything else, such as attention among tokens of several ranks: a differentiable, pure function
/// of rows [R, C], whose parameters come by with_gradient().
struct FunctionBody {
  std::function<at::Tensor(const at::Tensor& rows)> function;
  std::vector<at::Tensor> gradients;  ///< what it adds to
};

/// Vectors of a branch by their number in the block, each used once. Negative: neither norm nor
/// modulation, and a gate of one.
struct SeamNumbers {
  int64_t shift = -1;
  int64_t scale = -1;
  int64_t gate = -1;
};

struct Branch {
  std::variant<SelfAttentionBody, JointAttentionBody, CrossAttentionBody, MlpBody, GatedMlpBody,
               ParallelBody, FunctionBody>
      body;
  SeamNumbers seam{};
  /// [P, C], fp32, without gradient: row r % P is added to row r of what the body reads. Only
  /// without norm.
  at::Tensor offset{};
  int64_t stream = 0;         ///< that it is off; 0 and 1 of a JointAttentionBody
  SeamNumbers second_seam{};  ///< of a JointAttentionBody: that of stream 1
  /// The next branch off the stream reads it as it was before this one: two beside each other. That
  /// one has a norm, this one a gate, and both are of one block.
  bool is_beside = false;
  /// Where its result is put, or taken from. Borrowed; null: nowhere. Without gradients.
  KeptResult* kept = nullptr;
};

/// What makes the vectors of a block [V, num_vectors C], fp32, of StackInputs::condition: a
/// differentiable, pure function, whose parameters come by with_gradient().
struct VectorFunction {
  std::function<at::Tensor(const at::Tensor& condition)> function{};
  std::vector<at::Tensor> gradients{};  ///< what it adds to
};

struct Block {
  std::vector<Branch> branches;
  int64_t num_vectors = 0;
  VectorFunction vectors{};  ///< of all blocks, in place of BlockStack::modulation, or of none
  /// As Branch::offset, added to the residual stream before the block.
  at::Tensor offset{};
};

/// What a block keeps for backward (Chen et al. 2016 for the idea). Attention is never computed
/// again but by kBlock.
enum class Recompute : uint8_t {
  kNone,
  kElementwise,  ///< norms' and GELU's outputs, turned heads are made again from their inputs
  kMlp,          ///< and the first product of the MLP
  kBlock,        ///< everything: only the block's input is kept
};

/// What ranks exchange.
struct Exchange {
  at::Tensor rows;               ///< what comes of it, once it is finished
  std::function<void()> finish;  ///< empty: it is

  [[nodiscard]] at::Tensor result() const {
    if (finish) {
      finish();
    }
    return rows;
  }
};

/// The ranks that divide the linears of a stack: those of branches, and the modulation's by its
/// inputs.
struct LinearRanks {
  /// Begins an exchange, in order with all others. beside: what is computed until it is finished
  /// does not wait for it.
  using Begin = std::function<Exchange(const at::Tensor& rows, bool beside)>;

  int64_t rank = 0;
  int64_t size = 1;
  /// Sums over them, in place, what each has made. Empty: there is one.
  Begin sum = {};
  /// Where each has a part of the rows between branches, with their norms and gates (Korthikanti et
  /// al. 2022, "Reducing activation recomputation in large transformer models", section 4.2.2):
  /// parts [R / size, C] become all rows [R, C]. Empty: each has all rows. The rows of a stream are
  /// divided in order, so that a part has whole vectors, or lies in one.
  Begin gather = {};
  /// The way back: the own part of the sum of what each has made of all rows.
  Begin scatter = {};

  [[nodiscard]] bool divides_rows() const { return gather != nullptr; }
  /// This rank's part of rows that all have: a view.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& rows) const {
    const int64_t count = rows.size(0) / size;
    return divides_rows() ? rows.narrow(0, rank * count, count) : rows;
  }
};

class HostActivations;

struct BlockStack {
  std::vector<Block> blocks;
  /// Linears of SiLU(condition) that make the blocks' vectors, in order: out = C x some blocks'.
  /// Empty: functions of the blocks do, or the vectors are given.
  std::vector<LinearWeights> modulation = {};
  double norm_epsilon = 1e-6;
  bool centres = true;  ///< norms of branches are LayerNorms, as the final one is; else RMSNorms
  /// Of stream 0. false: the result is the residual stream behind the last block.
  bool has_final_norm = true;
  Recompute recompute = Recompute::kNone;
  /// Whether blocks[i] is as kBlock, whatever `recompute` says. Empty: none.
  std::vector<bool> recomputed = {};
  /// kBlock keeps the result of a block's last branch, too: an activation more a block, a product
  /// less in backward.
  bool keeps_results = false;
  /// Until backward what the `offloaded` blocks keep lies in the host's memory (null: that of
  /// none), and with `fp8_activations` what all of them keep is in 8 bits (activations_aside.h);
  /// but for the stack's last block, which goes back at once. Graphs of autograd inside of a block,
  /// as of a FunctionBody, stay as they are.
  std::shared_ptr<HostActivations> host_activations = {};
  std::vector<bool> offloaded = {};  ///< whether blocks[i] is, where there is host_activations
  bool fp8_activations = false;
  /// Backward overwrites the gradients of weights, and all others hold nothing before it adds.
  bool overwrites_gradients = false;
  LinearRanks ranks = {};
  /// Told when the weights of a bucket are used. Empty: nobody.
  BucketHook hook = {};
  /// Of training: weights may have changed since the last pass.
  bool new_weights = true;
  std::vector<int64_t> block_buckets = {};  ///< of blocks[i]
  /// Of modulation[i]; negative: it makes the vectors of one block, in whose bucket it lies.
  std::vector<int64_t> modulation_buckets = {};
};

struct StackInputs {
  at::Tensor x;  ///< stream 0: [.., C] with R rows, in the compute type
  /// Stream 1: [.., C]. Undefined: no branch is off it.
  at::Tensor second{};
  /// fp32 [V, C], before SiLU; what functions read. Undefined where there is no modulation or
  /// `vectors` has all.
  at::Tensor condition{};
  /// fp32 [V, n C]: what modulation does not make. The last two are the final norm's, shift and
  /// scale, where there is one.
  at::Tensor vectors;
  /// [B, L, C] in the compute type; undefined: nothing reads it.
  at::Tensor text{};
  /// int32 [B]: as CrossAttention's. Undefined: all tokens are read, and x is [B, .., C].
  at::Tensor text_lengths{};
  /// Of each sample's rows of stream 0 so many have the first of two vectors, and the rest, and
  /// those of stream 1, the second: V = 2 B. 0: all vectors have as many rows.
  int64_t first_rows = 0;
};

/// The blocks and the modulated norm behind the last one: fp32, of x's shape; without that norm in
/// the compute type. Differentiable in x, condition, vectors and text; gradients of weights are
/// added in place. `kernels` is borrowed until backward has run. Everything can be recorded in a
/// CUDA graph: nothing waits for the device but the first call of a shape, which times. kShape
/// where inputs do not fit together.
[[nodiscard]] at::Tensor run_blocks(BlockKernels& kernels, BlockStack stack, StackInputs inputs);
/// The same with two streams: what becomes of either; undefined: it has ended.
[[nodiscard]] std::array<at::Tensor, 2> run_joint_blocks(BlockKernels& kernels, BlockStack stack,
                                                         StackInputs inputs);

/// The vectors of all blocks and of the final norm, for StackInputs::vectors without condition:
/// they do not depend on x. width: C. Without gradients.
[[nodiscard]] at::Tensor stack_vectors(BlockKernels& kernels, const BlockStack& stack,
                                       int64_t width, const at::Tensor& condition,
                                       const at::Tensor& vectors);

/// CrossAttentionBody::text_packed of text [B, L, C] in the compute type: it does not depend on x.
/// Without gradients.
[[nodiscard]] at::Tensor packed_text(BlockKernels& kernels, const CrossAttentionBody& body,
                                     const at::Tensor& text);

}  // namespace kinora::ops
