#pragma once

#include <array>
#include <optional>

#include "kinora/models/transformers/block_model.h"
#include "kinora/models/transformers/caption_encoder.h"
#include "kinora/models/transformers/grid.h"
#include "kinora/models/transformers/joint_layers.h"
#include "kinora/models/transformers/sliding_window.h"
#include "kinora/models/transformers/token_refiner.h"
#include "kinora/models/transformers/video_layers.h"

namespace kinora::models {

/// The multimodal diffusion transformer of Stable Diffusion 3 (Esser et al. 2024), with the
/// parallel blocks and rotary positions of Flux (Black Forest Labs 2024) and Open-Sora 2 (Peng et
/// al. 2025), and the token refiner of HunyuanVideo (Kong et al. 2024): text and image attend to
/// each other. Keys are those of Stable Diffusion 3; Flux' are nn::Naming's business.
class MMDiT : public BlockModel {
 public:
  explicit MMDiT(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

  void to_device(const at::Device& device) override;
  [[nodiscard]] at::Tensor null_caption() const override;
  [[nodiscard]] at::Tensor null_vector() const override { return null_pooled; }
  [[nodiscard]] std::vector<double> block_costs() const override;
  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;

 private:
  /// Needs text, and pooled where the model has pooled_channels. x_t: [B, C, H, W], or a clip.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  /// Whether the first frame's tokens have vectors of their own (JointTokens::first).
  [[nodiscard]] bool has_first(const diffusion::Conditions& conditions) const;
  /// Time, guidance and the caption's vector: [B, C], or with has_first() [2 B, C].
  [[nodiscard]] at::Tensor condition(const at::Tensor& t,
                                     const diffusion::Conditions& conditions) const;
  /// The text's stream, of the own tokens: fp32 [B, 1, L', C].
  [[nodiscard]] at::Tensor embed_text(const at::Tensor& states, const at::Tensor& lengths,
                                      const at::Tensor& t) const;
  /// The image's stream, of the own tokens: fp32 [B, 1, N', C]. window: whose order they have;
  /// null: their own.
  [[nodiscard]] at::Tensor embed_image(const at::Tensor& x_t,
                                       const diffusion::Conditions& conditions,
                                       const SlidingWindow* window) const;
  /// Its patches [B, 1, N, ..], and behind them those of pictures that are shown as tokens.
  [[nodiscard]] at::Tensor patches_of(const at::Tensor& x_t,
                                      const diffusion::Conditions& conditions) const;
  /// Of these pictures; nothing where there are none.
  [[nodiscard]] Grid shown_grid(const diffusion::Conditions& conditions, int64_t batch) const;
  /// fp32 angles of all of these: [1, N, D].
  [[nodiscard]] at::Tensor angles(const Grid& grid, const Grid& shown,
                                  const at::Device& device) const;
  /// The middle of the table for a picture of that grid: [1, 1, S, C].
  [[nodiscard]] at::Tensor positions(const Grid& grid) const;

  /// The blocks: image and text fp32 [B, 1, tokens, C] to the image's patches [B, 1, N', ..].
  [[nodiscard]] at::Tensor plain_blocks(const Streams& streams, const at::Tensor& c,
                                        const JointTokens& tokens,
                                        const diffusion::Pass& pass) const;
  /// c undefined: `pass` has what was prepared.
  [[nodiscard]] at::Tensor fast_blocks(const Streams& streams, const at::Tensor& c,
                                       const JointTokens& tokens,
                                       const diffusion::Pass& pass) const;
  /// The last joint block ends one, too.
  [[nodiscard]] bool ends_stack(int64_t use) const override {
    return BlockModel::ends_stack(use) || use + 1 == config().transformer.depth;
  }
  /// The streams of image and text as the pass's first block reads them.
  [[nodiscard]] Streams as_read(Streams streams, const diffusion::Pass& pass) const;
  /// The stacks of the joint and of the parallel blocks of a pass.
  struct Stacks {
    std::optional<ops::BlockStack> joint;
    std::optional<ops::BlockStack> parallel;
  };
  [[nodiscard]] Stacks stacks(const FastJoint& joint, const diffusion::Pass& pass) const;
  /// The same of stacks whose blocks a step cache may leave out. vectors: of all blocks and of the
  /// final norm.
  [[nodiscard]] at::Tensor fast_pieces(const Stacks& stacks, const Streams& streams,
                                       const at::Tensor& vectors, const JointTokens& tokens,
                                       const diffusion::Pass& pass) const;
  /// Those of the final norm, which all tokens share: [V, 2 C] of c [V, C].
  [[nodiscard]] at::Tensor final_vectors(const at::Tensor& c, int64_t first) const;
  /// The vectors of all blocks and of the final norm. last: the latter, [V, 2 C].
  [[nodiscard]] at::Tensor all_vectors(const Stacks& stacks, const at::Tensor& c,
                                       const at::Tensor& last) const;
  /// Of the vectors that the stack's modulation makes.
  [[nodiscard]] int64_t vector_columns(const ops::BlockStack& stack) const;

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  PatchEmbed x_embedder;
  std::optional<PatchEmbed> cond_embedder;  // of given frames
  TimestepEmbedder t_embedder;
  std::optional<TimestepEmbedder> guidance_embedder;
  std::optional<VectorEmbedder> y_embedder;
  std::optional<CaptionEncoder> text_encoder;
  std::optional<nn::Linear> context_embedder;
  std::optional<TokenRefiner> text_refiner;  // of HunyuanVideo, in its place
  at::Tensor null_text;                      // [L, width of a state]
  at::Tensor null_pooled;                    // [width of a vector]; undefined where none is read
  at::Tensor pos_embed;                      // [1, G G, C]; undefined with rotary positions
  BlockList<JointBlock> joint_blocks;
  BlockList<ParallelBlock> single_blocks;
  FinalLayer final_layer;
  // NOLINTEND(readability-identifier-naming)
  SlidingWindows sliding_windows_;
};

}  // namespace kinora::models
