#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kinora/comm/group.h"
#include "kinora/models/transformers/branches.h"
#include "kinora/models/transformers/transformer_config.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/module.h"
#include "kinora/nn/rms_norm.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/block_mask.h"

/// Attention whose queries and keys are normed over all heads together (Wan, LTX-Video).
///
/// Shapes: B batch, T frames, S tokens of a frame, S' those that are here, L text tokens, C hidden,
/// H heads, D = C / H; H' and C' of the heads that are here, where ranks divide them.
namespace kinora::models {

// NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys

/// RMSNorm over all heads, of which each rank of a group may have some: key weight, [C].
class JoinedHeadNorm : public nn::RmsNorm {
 public:
  JoinedHeadNorm(int64_t hidden, double epsilon);
  /// x: [.., C'], of the heads that are here.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const comm::Group& group) const;
};

/// That of queries and that of keys: keys q_norm, k_norm.
class JoinedHeadNorms : public nn::Module {
 public:
  JoinedHeadNorms(int64_t hidden, double epsilon);
  /// For the fast path: the norms beside a rotation.
  [[nodiscard]] ops::HeadRule rule(const comm::Group& group, ops::HeadRule rotation = {}) const;

  JoinedHeadNorm q_norm;
  JoinedHeadNorm k_norm;
};

/// The tokens that a JoinedSelfAttention is among.
struct ClipTokens {
  /// Angles of the own ones for nn::rotated, fp32 [1, T, S', D], alike for all heads, or
  /// [B, T, S', C].
  at::Tensor rotary;
  int64_t tokens_a_frame = 0;                              ///< S
  std::shared_ptr<const ops::BlockMask> blocks = nullptr;  ///< null: each attends to all
};

/// Attention of a clip's tokens to each other: keys qkv, proj and those of JoinedHeadNorms. Where
/// tokens are divided, those of each frame are.
class JoinedSelfAttention : public nn::Module {
 public:
  JoinedSelfAttention(const TransformerConfig& config, double epsilon);

  /// x: [B, T, S', C]. Returns [B, T, S', C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const ClipTokens& tokens,
                                   const nn::Sequence& sequence) const;

  /// For the fast path: by kernels where all tokens are here. rotation: tokens.rotary for these,
  /// which all blocks share (nn::head_rule).
  [[nodiscard]] ops::Branch fast(const FastPass& pass, const ClipTokens& tokens,
                                 const ops::HeadRule& rotation,
                                 const ops::SeamNumbers& vectors) const;

 private:
  /// From what qkv makes, [B, T, S', 3 C'], to what proj reads, [B, T, S', C']. kernels: null:
  /// without.
  [[nodiscard]] at::Tensor attend(ops::BlockKernels* kernels, const at::Tensor& projected,
                                  const ClipTokens& tokens, const nn::Sequence& sequence) const;

  int64_t head_size_;
  JoinedHeadNorms norms_;

 public:
  nn::Linear qkv;   // [3 C, C]
  nn::Linear proj;  // [C, C]
};

/// Keys and values of the states of given frames, which the queries of a JoinedTextAttention read
/// beside those of the text: keys image_kv_linear, image_k_norm.
class JoinedImageKeys : public nn::Module {
 public:
  JoinedImageKeys(const TransformerConfig& config, double epsilon);

  nn::Linear image_kv_linear;  // [2 C, C]
  JoinedHeadNorm image_k_norm;
};

/// Attention of a clip's tokens to a text, and to the states of given frames where the model reads
/// them (TransformerConfig::image_channels): keys q_linear, kv_linear, proj, those of
/// JoinedHeadNorms and of JoinedImageKeys.
class JoinedTextAttention : public nn::Module {
 public:
  JoinedTextAttention(const TransformerConfig& config, double epsilon);

  /// x: [B, T, S', C]. context: [B, M + L, C], the M states of images first. lengths: int64 [B], so
  /// many of the L are read, of a row without any none; undefined: all. Returns [B, T, S', C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& context,
                                   int64_t num_images, const at::Tensor& lengths = {}) const;

  /// For the fast path.
  [[nodiscard]] ops::CrossAttentionBody body(int64_t num_images = 0) const;
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  int64_t head_size_;
  JoinedHeadNorms norms_;
  nn::Linear q_linear;   // [C, C]
  nn::Linear kv_linear;  // [2 C, C]
  nn::Linear proj;       // [C, C]
  std::optional<JoinedImageKeys> images_;
};

// NOLINTEND(readability-identifier-naming)

/// Those of a block that can compute in fp8, in order.
[[nodiscard]] std::vector<nn::Linear*> joined_linears(JoinedSelfAttention& attention,
                                                      JoinedTextAttention& text, nn::Mlp& mlp);

}  // namespace kinora::models
