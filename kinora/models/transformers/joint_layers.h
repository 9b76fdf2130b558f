#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kinora/models/transformers/dit.h"
#include "kinora/models/transformers/sliding_window.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/module.h"
#include "kinora/nn/rms_norm.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/block_stack.h"

/// Blocks in which text and image attend to each other: the multimodal transformer's (Esser et al.
/// 2024, "Scaling rectified flow transformers", figure 2b) and the parallel ones of Flux.
///
/// Shapes: B batch, N image tokens, L text tokens, C hidden, M hidden width of the MLP, H heads,
/// D = C / H. Streams are image and text, fp32 [B, 1, tokens, C]; where ranks divide a sample each
/// has N' and L' tokens.
namespace kinora::models {

/// What attention needs to know of both streams.
struct JointTokens {
  const nn::Sequence* sequence = nullptr;  ///< where the tokens lie
  ops::BlockKernels* kernels = nullptr;    ///< null: none
  int64_t image = 0;                       ///< N
  int64_t text = 0;                        ///< L
  int64_t own_image = 0;                   ///< N'
  int64_t own_text = 0;                    ///< L'
  /// So many of the image's first tokens, all of which are here, have vectors of their own: those
  /// of the first of two conditions a sample. 0: there is one.
  int64_t first = 0;
  /// int64 [B]: so many of a caption's tokens are read. Undefined: all.
  at::Tensor text_lengths{};
  /// fp32 [ready_image(), D], for nn::rotated; undefined: positions are no rotation. Text is at
  /// position 0 of every axis, and so not turned.
  at::Tensor image_angles{};
  /// Of all tokens, and of the image's alone; null: everyone attends to all.
  std::shared_ptr<const ops::BlockMask> blocks{};
  std::shared_ptr<const ops::BlockMask> image_blocks{};

  /// Tokens whose queries and keys are normed and turned here: the own ones, or of some heads all.
  [[nodiscard]] int64_t ready_image() const {
    return sequence->makes_streams() ? image : own_image;
  }
  [[nodiscard]] int64_t ready_text() const { return sequence->makes_streams() ? text : own_text; }
};

/// What all blocks read beside the streams.
struct JointInputs {
  /// fp32 [B, C], or with tokens.first [2 B, C]: time and what else is one vector a sample.
  at::Tensor condition;
  JointTokens tokens;
};

/// What all blocks share on the fast path.
struct FastJoint {
  FastJoint() = default;
  FastJoint(const JointTokens& tokens, diffusion::StepCache* cache);

  JointTokens tokens;
  diffusion::StepCache* cache = nullptr;  ///< of the pass; null: none
  /// Cosines and sines [ready_image() + ready_text(), D / 2]; undefined: none.
  ops::HeadRule rotation{};
  ops::AttendedKeys keys{};  ///< of N + L, where attention is here

  /// ops::Branch::kept of the next branch, in order of use.
  [[nodiscard]] ops::KeptResult* kept(ops::BranchKind kind) const {
    return cache == nullptr ? nullptr : cache->next(kind);
  }
};

/// JointTokens::image_angles, of those of all of the image's tokens: [1, 1, N, D].
[[nodiscard]] at::Tensor ready_angles(const JointTokens& tokens, const SlidingWindow* window,
                                      const at::Tensor& angles);

/// Of conditions, or what is made of them [V, ..]: those of all tokens but the image's first.
/// first: JointTokens'.
[[nodiscard]] at::Tensor of_rest(const at::Tensor& vectors, int64_t first);

/// Attention of the plain path. packed: normed [B, tokens, 3, H, D] of image and, if there are two,
/// text. Returns [B, 1, tokens, C] of each.
[[nodiscard]] std::vector<at::Tensor> attend_jointly(std::vector<at::Tensor> packed,
                                                     const JointTokens& tokens,
                                                     bool is_turned = true);

/// h, [B, 1, N' + L', C], image before text, as streams whose queries, keys and values a sequence
/// makes. normed: of [B, tokens, 3, H', D].
[[nodiscard]] std::vector<nn::UnmadeStream> unmade_streams(
    const at::Tensor& h, const ops::LinearWeights& qkv, int64_t num_heads,
    const JointTokens& tokens, const std::function<at::Tensor(const at::Tensor&)>& normed);

/// attend_jointly() of such streams.
[[nodiscard]] std::vector<at::Tensor> attend_unmade(const std::vector<nn::UnmadeStream>& streams,
                                                    const JointTokens& tokens);

/// Has attention go among ranks, if they divide the tokens. body: of rows that hold, of each
/// sample, the image's own tokens and, with text, then the text's.
void attend_among_ranks(const JointTokens& tokens, bool has_text, ops::SelfAttentionBody* body);

// Members that hold parameters are named as the keys of Stable Diffusion 3.
// NOLINTBEGIN(readability-identifier-naming)

/// RMSNorm of each head's queries and keys, where the model has it: keys q_norm, k_norm.
class HeadNorms : public nn::Module {
 public:
  explicit HeadNorms(const TransformerConfig& config);
  /// packed: [B, tokens, 3, H, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& packed) const;

  /// For the fast path: of image tokens (stream 0), of text.
  [[nodiscard]] ops::HeadRule rule(const FastJoint& joint, int64_t stream) const;
  /// And of both, the image's first.
  [[nodiscard]] ops::HeadRule rule(const FastJoint& joint) const;

 private:
  std::optional<nn::RmsNorm> q_norm;
  std::optional<nn::RmsNorm> k_norm;
};

/// A stream's part of attention: keys qkv, proj and those of HeadNorms.
class StreamAttention : public nn::Module {
 public:
  /// ends: nothing reads what its tokens attended to, so there is no proj.
  StreamAttention(const TransformerConfig& config, bool ends);
  /// x: [B, 1, tokens, C]. Returns normed [B, tokens, 3, H, D].
  [[nodiscard]] at::Tensor project(const at::Tensor& x) const;
  /// The same where the sequence makes them. angles: undefined, or of all tokens. Borrows this.
  [[nodiscard]] nn::UnmadeStream unmade(const at::Tensor& x, const at::Tensor& angles) const;
  /// attended: [B, 1, tokens, C].
  [[nodiscard]] at::Tensor finish(const at::Tensor& attended) const;
  [[nodiscard]] bool ends() const { return !proj.has_value(); }
  /// Those that are here.
  [[nodiscard]] int64_t num_heads() const { return qkv.weight.shape.front() / (3 * head_size_); }

  // For the fast path.
  [[nodiscard]] ops::JointAttentionBody::Part part(const FastJoint& joint, int64_t stream) const;
  /// Of the image to itself.
  [[nodiscard]] ops::SelfAttentionBody body(const FastJoint& joint) const;
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  int64_t head_size_;  // D
  nn::Linear qkv;      // [3 C, C], rows (3, H, D) major
  std::optional<nn::Linear> proj;
  HeadNorms norms_;
};

/// What a joint block does to one stream: adaLN_modulation, attn, mlp, of Stable Diffusion 3.5 in
/// some blocks attn2, attention of the image to itself beside it.
class StreamBlock : public nn::Module {
 public:
  struct Options {
    bool ends = false;  ///< the stream ends here: its tokens are read once more
    bool has_second_attention = false;
  };
  StreamBlock(const TransformerConfig& config, const Options& options);

  /// The vectors of its seams, of `condition`: [V, 1, 1, C].
  [[nodiscard]] std::vector<at::Tensor> modulation(const at::Tensor& condition) const;
  /// The norm that attention reads.
  [[nodiscard]] static at::Tensor first_norm(const at::Tensor& x, const std::vector<at::Tensor>& m);
  [[nodiscard]] at::Tensor project(const at::Tensor& x, const std::vector<at::Tensor>& m) const;
  [[nodiscard]] nn::UnmadeStream unmade(const at::Tensor& x, const std::vector<at::Tensor>& m,
                                        const at::Tensor& angles) const;
  /// What attention adds to the stream, before its gate.
  [[nodiscard]] at::Tensor result(const at::Tensor& attended) const {
    return attn.finish(attended);
  }
  /// What is behind attention, whose result() `added` is.
  [[nodiscard]] at::Tensor finish(const at::Tensor& x, const std::vector<at::Tensor>& m,
                                  const at::Tensor& added, const JointTokens& tokens) const;
  [[nodiscard]] bool ends() const { return attn.ends(); }
  [[nodiscard]] int64_t num_heads() const { return attn.num_heads(); }

  // For the fast path.
  /// The vectors of its seams are numbered from `first_vector`.
  struct Fast {
    ops::JointAttentionBody::Part attention;
    ops::SeamNumbers seam;                ///< of attention
    std::optional<ops::Branch> beside{};  ///< the second attention
    std::optional<ops::Branch> mlp{};     ///< none: the stream ends
    int64_t num_vectors = 0;
  };
  [[nodiscard]] Fast fast(const FastJoint& joint, int64_t stream, int64_t first_vector) const;
  [[nodiscard]] ops::LinearWeights slab() const { return adaLN_modulation.weights(); }
  /// Those that can compute in fp8, in order.
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  Modulation adaLN_modulation;
  StreamAttention attn;
  std::optional<StreamAttention> attn2;
  std::optional<nn::Mlp> mlp;
};

/// Text and image with weights of their own, and one attention: keys context_block, x_block.
class JointBlock : public nn::Module {
 public:
  /// number: of the blocks, from 0.
  JointBlock(const TransformerConfig& config, int64_t number);
  /// streams: image, text. Returns those that go on, the image first.
  [[nodiscard]] std::vector<at::Tensor> forward(const std::vector<at::Tensor>& streams,
                                                const JointInputs& inputs) const;
  /// The norm that attention reads of the image.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& image, const JointInputs& inputs) const;

  // For the fast path: the image is stream 0.
  [[nodiscard]] ops::Block fast(const FastJoint& joint) const;
  /// What makes the block's vectors, in order.
  [[nodiscard]] std::vector<ops::LinearWeights> modulation() const;
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  StreamBlock context_block;
  StreamBlock x_block;
};

/// Attention and MLP beside each other in two linears (Dehghani et al. 2023, "Scaling vision
/// transformers to 22 billion parameters", section 2), on text and image as one stream: keys
/// modulation, linear1, linear2 and those of HeadNorms.
class ParallelBlock : public nn::Module {
 public:
  explicit ParallelBlock(const TransformerConfig& config);
  /// x: [B, 1, N' + L', C], image before text.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const JointInputs& inputs) const;

  // For the fast path: the text is behind the image.
  [[nodiscard]] ops::Block fast(const FastJoint& joint) const;
  [[nodiscard]] ops::LinearWeights slab() const { return modulation.weights(); }
  [[nodiscard]] std::vector<nn::Linear*> linears() { return {&linear1, &linear2}; }

 private:
  /// What qkv has made, [B, 1, tokens, 3 C], normed, of image and text: [B, tokens, 3, H, D].
  [[nodiscard]] std::vector<at::Tensor> split(const at::Tensor& packed,
                                              const JointTokens& tokens) const;

  int64_t head_size_;  // D
  Modulation modulation;
  nn::Linear linear1;  // [3 C + M, C]: parts qkv, fc1
  nn::Linear linear2;  // [C, C + M]: parts proj, fc2
  HeadNorms norms_;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
