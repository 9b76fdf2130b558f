#pragma once

#include "kinora/models/transformers/caption_model.h"
#include "kinora/models/transformers/joined_heads.h"
#include "kinora/nn/linear.h"

namespace kinora::models {

// Members that hold parameters are named as those of the other models of clips.
// NOLINTBEGIN(readability-identifier-naming)

/// Attention among all tokens, to the text, MLP; norms without weights, by the root mean square.
class LtxBlock : public nn::Module {
 public:
  explicit LtxBlock(const TransformerConfig& config);
  /// tokens: as JoinedSelfAttention's, with angles of all heads.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, const ClipTokens& tokens) const;
  /// The norm that attention reads.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& x, const BlockConditions& conditions) const;
  /// The learned part of the block's vectors: [6, C].
  [[nodiscard]] at::Tensor table() const;

  // For the fast path.
  [[nodiscard]] ops::Block fast(const FastPass& pass, const ClipTokens& tokens,
                                const ops::HeadRule& rotation) const;
  [[nodiscard]] const JoinedTextAttention& cross_attention() const { return cross_attn; }
  /// Those that can compute in fp8, in order.
  [[nodiscard]] std::vector<nn::Linear*> linears() { return joined_linears(attn, cross_attn, mlp); }

 private:
  JoinedSelfAttention attn;
  JoinedTextAttention cross_attn;
  nn::Mlp mlp;
  nn::Parameter scale_shift_table;  // [6, C]
};

/// The transformer of LTX-Video (HaCohen et al. 2024, "LTX-Video: realtime video latent
/// diffusion"): attention over whole clips, with rotary positions in seconds and in pixels, so that
/// it is told the frames a second; of captions the words alone are read. Given frames stand in the
/// clip, at the time 0 or that of their level; from 0.9.5 on also before it, with positions of
/// their own (Conditions::shown_places).
class LtxVideo : public CaptionModel {
 public:
  explicit LtxVideo(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

  /// Of which a null caption is the first row, as an empty caption is one token.
  [[nodiscard]] at::Tensor null_caption() const override;

 private:
  /// Needs text and fps.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor table(int64_t use) const override;
  [[nodiscard]] bool centres() const override { return false; }
  /// Of a null caption the first state is read. Both paths'.
  [[nodiscard]] at::Tensor fast_text_lengths(
      const diffusion::Conditions& conditions) const override;
  /// Angles of all tokens, fp32 [B, T, S, C]. shown_places: of Conditions.
  [[nodiscard]] at::Tensor angles(const Grid& grid, const at::Tensor& fps,
                                  const at::Tensor& shown_places) const;

  BlockList<LtxBlock> blocks;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
