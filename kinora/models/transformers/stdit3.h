#pragma once

#include <optional>

#include "kinora/models/transformers/caption_model.h"

namespace kinora::models {

/// STDiT3 of Open-Sora 1.2: pairs of a block that attends within frames and one that attends
/// through time, for clips of any size. With rotary_3d and window that of 1.3: a third of a head's
/// dims turns for each axis, and the second block of a pair attends within windows of a clip.
///
/// With given_embedders given frames (Conditions::frame_mask) are as in 1.3's image to video: they
/// are embedded beside x_t, in which they are noised as all others; they have the time of the
/// others and read the null text.
class STDiT3 : public CaptionModel {
 public:
  explicit STDiT3(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

 private:
  /// Needs text, fps, height, width.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  [[nodiscard]] TimeVectors time_vectors(const at::Tensor& t,
                                         const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor table(int64_t use) const override;
  /// One a frame where frames are given to embedders of their own: the null text of those.
  [[nodiscard]] at::Tensor fast_texts(const diffusion::Conditions& conditions) const override;
  [[nodiscard]] at::Tensor fast_text_lengths(
      const diffusion::Conditions& conditions) const override;

  /// Whether frames are given to embedders of their own.
  [[nodiscard]] bool embeds_given(const diffusion::Conditions& conditions) const;
  /// What is added to the embedded x_t where frames are given: this rank's tokens [B, T, S', C].
  [[nodiscard]] at::Tensor embed_given(const diffusion::Conditions& conditions) const;
  /// The null text as blocks read it, as long as the texts: [B, L, C].
  [[nodiscard]] at::Tensor embed_null_text(const diffusion::Conditions& conditions) const;
  /// Conditions of the plain path's blocks in such a pass.
  [[nodiscard]] BlockConditions with_null_text(BlockConditions inputs,
                                               const diffusion::Conditions& conditions) const;

  /// Angles of rows x columns tokens in each of `frames`: fp32 [frames, rows * columns, D].
  [[nodiscard]] at::Tensor angles_3d(int64_t frames, int64_t rows, int64_t columns,
                                     const at::Tensor& scale) const;
  /// Of both blocks of a pair, as nn::Sequence takes them; undefined: nothing is turned.
  struct Angles {
    at::Tensor space;  ///< [T, S, D]
    at::Tensor time;   ///< [T, 1, D], or of a window's tokens [N, D]
  };
  [[nodiscard]] Angles angles_of(const Grid& grid, const at::Tensor& scale) const;
  [[nodiscard]] nn::Windows windows_of(const Grid& grid) const;
  // Of the plain path.
  [[nodiscard]] CaptionBlock::Attend attend_space(const nn::Sequence& sequence, const Grid& grid,
                                                  const at::Tensor& angles) const;
  [[nodiscard]] CaptionBlock::Attend attend_time(const nn::Sequence& sequence, const Grid& grid,
                                                 const at::Tensor& angles) const;

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  SizeEmbedder fps_embedder;
  Rope rope;
  std::optional<PatchEmbed> x_embedder_cond;
  std::optional<PatchEmbed> x_embedder_cond_mask;
  BlockList<CaptionBlock> spatial_blocks;
  BlockList<CaptionBlock> temporal_blocks;
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace kinora::models
