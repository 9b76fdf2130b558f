#pragma once

#include <optional>
#include <vector>

#include "kinora/models/transformers/block_model.h"
#include "kinora/models/transformers/caption_encoder.h"
#include "kinora/models/transformers/grid.h"
#include "kinora/models/transformers/joint_layers.h"
#include "kinora/models/transformers/sliding_window.h"
#include "kinora/models/transformers/video_layers.h"
#include "kinora/nn/layer_norm.h"

namespace kinora::models {

// Streams are clip and text, fp32 [B, 1, tokens, C], as those of joint_layers.h. Members that hold
// parameters are named as those of the other models of clips.
// NOLINTBEGIN(readability-identifier-naming)

/// LayerNorm with weights that both streams share, modulated by vectors of their own: keys norm,
/// adaLN_modulation.
class StreamsNorm : public nn::Module {
 public:
  explicit StreamsNorm(const TransformerConfig& config);
  /// Shift, scale and gate of the clip, then of the text.
  [[nodiscard]] std::vector<at::Tensor> vectors(const at::Tensor& condition) const;
  /// The clip's norm.
  [[nodiscard]] at::Tensor of_clip(const at::Tensor& clip, const std::vector<at::Tensor>& m) const;
  /// Both streams normed, the text behind the clip.
  [[nodiscard]] at::Tensor forward(const std::vector<at::Tensor>& streams,
                                   const std::vector<at::Tensor>& m) const;

  // For the fast path.
  /// Shift, scale and gate, with the norm's weights in them: [B, 2, 3, C], of the clip and the
  /// text.
  [[nodiscard]] at::Tensor seam_vectors(const at::Tensor& condition) const;
  /// What their backward adds to.
  [[nodiscard]] std::vector<at::Tensor> gradients() const;

 private:
  nn::LayerNorm norm;
  Modulation adaLN_modulation;
};

/// Attention of both streams with one set of weights, and LayerNorm of each head's queries and
/// keys: keys qkv, proj, q_norm, k_norm.
class SharedAttention : public nn::Module {
 public:
  explicit SharedAttention(const TransformerConfig& config);
  /// x: [B, 1, N' + L', C], the clip first.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const JointTokens& tokens) const;

  // For the fast path.
  [[nodiscard]] ops::SelfAttentionBody body(const FastJoint& joint) const;
  [[nodiscard]] std::vector<nn::Linear*> linears() { return {&qkv, &proj}; }

 private:
  /// packed: [B, tokens, 3, H, D].
  [[nodiscard]] at::Tensor normed(const at::Tensor& packed) const;

  int64_t head_size_;  // D
  nn::Linear qkv;      // [3 C, C]
  nn::Linear proj;     // [C, C]
  nn::LayerNorm q_norm;
  nn::LayerNorm k_norm;
};

/// Attention and MLP, whose weights clip and text share.
class CogVideoXBlock : public nn::Module {
 public:
  explicit CogVideoXBlock(const TransformerConfig& config);
  /// ends: nothing reads the text behind it, which is left out.
  [[nodiscard]] std::vector<at::Tensor> forward(const std::vector<at::Tensor>& streams,
                                                const JointInputs& inputs, bool ends) const;
  /// The norm that attention reads of the clip.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& clip, const at::Tensor& condition) const;

  // For the fast path: one stream, each sample's text behind its clip, with vectors of its own.
  [[nodiscard]] ops::Block fast(const FastJoint& joint) const;
  /// Those that can compute in fp8, in order.
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  StreamsNorm norm1;
  SharedAttention attn;
  StreamsNorm norm2;
  nn::Mlp mlp;
};

/// Two norms with weights, the second modulated, and projection to patches, fp32: keys norm,
/// norm_out, adaLN_modulation, linear.
class CogVideoXFinalLayer : public nn::Module {
 public:
  explicit CogVideoXFinalLayer(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& condition) const;

 private:
  nn::LayerNorm norm;
  nn::LayerNorm norm_out;
  Modulation adaLN_modulation;
  nn::Linear linear;
};

/// The transformer of CogVideoX (Yang et al. 2024, "CogVideoX: text-to-video diffusion models with
/// an expert transformer"): clip and text attend to each other with weights that they share, and
/// are told apart by their modulation alone. Positions are sinusoids (2B), rotary (5B), or rotary
/// with a table beside them that no training moves (5B-I2V). 1.5 has patches of two frames; clips
/// of other numbers begin with their first frame once more, which is left out of what is predicted.
class CogVideoX : public BlockModel {
 public:
  explicit CogVideoX(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

  void to_device(const at::Device& device) override;
  [[nodiscard]] at::Tensor null_caption() const override;
  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;

 private:
  /// Needs text, and beside where the model has it. x_t: [B, C, T, H, W], or an image.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  /// [B, time_channels].
  [[nodiscard]] at::Tensor condition(const at::Tensor& t) const;
  /// What is added to the patches of a clip: [1, 1, N, C]; undefined: nothing.
  [[nodiscard]] at::Tensor positions(const Grid& grid, const at::Device& device) const;
  /// The norm that the first block reads of the clip.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& clip, const at::Tensor& c) const;
  // All blocks: the clip behind them; nothing behind a stage's.
  [[nodiscard]] at::Tensor plain_blocks(const Streams& streams, const at::Tensor& c,
                                        const JointTokens& tokens,
                                        const diffusion::Pass& pass) const;
  /// The blocks of a pass on the fast path.
  [[nodiscard]] ops::BlockStack fast_stack(const FastJoint& joint,
                                           const diffusion::Pass& pass) const;
  [[nodiscard]] at::Tensor fast_blocks(const Streams& streams, const at::Tensor& c,
                                       const JointTokens& tokens,
                                       const diffusion::Pass& pass) const;

  PatchEmbed x_embedder;
  TimestepEmbedder t_embedder;
  std::optional<TimestepEmbedder> ofs_embedder;
  std::optional<CaptionEncoder> text_encoder;
  nn::Linear context_embedder;
  at::Tensor null_text;  // [L, width of a state]
  at::Tensor pos_embed;  // [1, L + N, C]: of the text, of a clip of base_grid; undefined: none
  BlockList<CogVideoXBlock> blocks;
  CogVideoXFinalLayer final_layer;
  SlidingWindows sliding_windows_;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
