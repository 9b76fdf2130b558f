#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/transformers/block_model.h"
#include "kinora/models/transformers/caption_encoder.h"
#include "kinora/models/transformers/caption_inputs.h"
#include "kinora/models/transformers/joined_heads.h"
#include "kinora/models/transformers/sliding_window.h"
#include "kinora/models/transformers/video_layers.h"

namespace kinora::models {

/// What the transformers have in common that captions condition by adaLN-single, PixArt and its
/// line: embedders, final layer, buffers, buckets. Each has its own forward() and blocks.
class CaptionModel : public BlockModel {
 public:
  void to_device(const at::Device& device) override;

  /// For the fast path: the vectors of all seams, and the keys and values of the texts, which are
  /// the same at all times; each where they take at most 1 GiB.
  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;

 protected:
  explicit CaptionModel(const ModelConfig& config);

  /// To be called when all children are there. blocks: paths in order of use. linears: of each,
  /// those that can compute in fp8. readers: what reads the text, in order.
  void set_block_buckets(const std::vector<std::string>& blocks,
                         std::vector<std::vector<nn::Linear*>> linears, TextReaders readers);

  void check_inputs(const at::Tensor& x_t, const at::Tensor& t,
                    const diffusion::Conditions& conditions) const {
    check_caption_inputs(config(), x_t, t, conditions);
  }
  /// kShape where x_t is not of the configured size or one frame of it, for models made for one.
  void check_size(const at::Tensor& x_t) const;
  /// The number [B] that the model is conditioned on, beside t; kShape where it is not given.
  [[nodiscard]] const at::Tensor& required(const at::Tensor& number, const char* name,
                                           const at::Tensor& t) const;

  /// What times t [B] and conditions make of the vectors of blocks and of the final layer.
  struct TimeVectors {
    FrameCondition condition;
    at::Tensor vectors;  ///< fp32 [B, T or 1, n, C]
  };
  [[nodiscard]] virtual TimeVectors time_vectors(const at::Tensor& t,
                                                 const diffusion::Conditions& conditions) const = 0;
  /// The learned part of a block's vectors, [n, C]: of the one that is used as number `use`.
  [[nodiscard]] virtual at::Tensor table(int64_t use) const = 0;
  /// Vectors of the same block that time does not change, behind these: [m, C]; undefined: none.
  [[nodiscard]] virtual at::Tensor norm_vectors(int64_t /*use*/) const { return {}; }

  /// This rank's tokens, fp32: [B, T, S', C]. positions: [1, 1, S, C].
  [[nodiscard]] at::Tensor embed(const at::Tensor& x_t, const at::Tensor& positions) const;

  [[nodiscard]] BlockConditions block_conditions(const at::Tensor& vectors,
                                                 const diffusion::Conditions& conditions) const;

  /// The caption as blocks read it: [B, L, C].
  [[nodiscard]] at::Tensor embed_text(const diffusion::Conditions& conditions) const;
  /// What blocks of the fast path read instead, and how much of it (undefined: all): R texts
  /// [R, L, C] and [R], each of which is read by as many of the tokens [B T S'], one text behind
  /// the other.
  [[nodiscard]] virtual at::Tensor fast_texts(const diffusion::Conditions& conditions) const;
  [[nodiscard]] virtual at::Tensor fast_text_lengths(const diffusion::Conditions& conditions) const;

  /// A block of the plain path, the one that is used as number `use` in a pass.
  using Body = std::function<at::Tensor(const at::Tensor& x, const BlockConditions& conditions)>;
  [[nodiscard]] at::Tensor run_plain(int64_t use, bool recompute, const at::Tensor& x,
                                     const BlockConditions& conditions, const Body& body) const;
  /// The pass's blocks and what is behind the last by the fast path: as x_t.
  [[nodiscard]] at::Tensor run_fast(std::vector<ops::Block> blocks, const at::Tensor& x,
                                    const at::Tensor& x_t, const at::Tensor& t,
                                    const diffusion::Conditions& conditions,
                                    const diffusion::Pass& pass) const;

  /// The own tokens of a clip of that grid, [B, T, S', ..] of [B, T, S, ..], in the order of
  /// model.sliding_window; finish() and run_fast() put it back.
  [[nodiscard]] at::Tensor own_tokens(const at::Tensor& tokens, const Grid& grid) const;
  /// Those tokens, with such angles [1 or B, T, S, D] of all.
  [[nodiscard]] ClipTokens clip_tokens(const Grid& grid, const at::Tensor& rotary) const;

  /// The final layer of the plain path and what is behind it: as x_t. Nothing behind a stage's
  /// blocks.
  [[nodiscard]] at::Tensor finish(const at::Tensor& x, const FrameCondition& condition,
                                  const at::Tensor& x_t) const;

 private:
  /// model.sliding_window of such a clip; null: there is none.
  [[nodiscard]] const SlidingWindow* window_of(const Grid& grid, at::Device device) const;
  /// The vectors of the seams of these blocks, and of the last one if it is among them: fp32 [B (T
  /// or 1), n C].
  [[nodiscard]] at::Tensor seam_vectors(const TimeVectors& time, BlockSpan blocks) const;
  /// Those of all times, [S, B (T or 1), n C]; undefined where they take too much.
  [[nodiscard]] at::Tensor seam_vectors_at(const at::Tensor& times,
                                           const diffusion::Conditions& conditions) const;
  /// What blocks read of the text, one for each that does; nothing where it takes too much.
  [[nodiscard]] std::vector<at::Tensor> packed_texts(const diffusion::Conditions& conditions) const;
  /// This rank's patches as x_t.
  [[nodiscard]] at::Tensor to_clip(const at::Tensor& part, const at::Tensor& x_t) const;

  TextReaders readers_;
  SlidingWindows windows_;

 protected:
  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  PatchEmbed x_embedder;
  TimestepEmbedder t_embedder;
  Modulation t_block;
  std::optional<CaptionEncoder> text_encoder;
  CaptionEmbedder y_embedder;
  CaptionFinalLayer final_layer;
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace kinora::models
