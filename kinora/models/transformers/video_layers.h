#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/models/transformers/branches.h"
#include "kinora/models/transformers/dit.h"
#include "kinora/models/transformers/grid.h"
#include "kinora/nn/cross_attention.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/nn/self_attention.h"
#include "kinora/nn/sequence.h"

/// What the transformers of clips and captions share. Tokens are [B, T, S, C], or a rank's part
/// [B, T, S', C] of them; the residual stream and all modulation are fp32.
///
/// Shapes: B batch, T frames of patches, S patches of a frame, C hidden, P patch side, p its
/// frames, L text tokens, D their width.
namespace kinora::models {

// ---- patches ----

/// x_t cut into patches, what is missing of the last ones zeros: [B, T, S, channels p P P].
[[nodiscard]] at::Tensor to_patches(const ModelConfig& config, const at::Tensor& x_t);

/// The reverse for patches [B, T, S, p P P out], out fastest: fp32 of x_t's sizes, with `out`
/// channels.
[[nodiscard]] at::Tensor from_patches(const ModelConfig& config, const at::Tensor& patches,
                                      const at::Tensor& x_t);

/// Patches [.., out p P P] as from_patches() takes them.
[[nodiscard]] at::Tensor channels_fastest(const ModelConfig& config, const at::Tensor& patches);

// ---- positions ----

/// A linear from C to parts C, by Xavier's initialisation.
[[nodiscard]] nn::Linear projection(int64_t hidden, int64_t parts);

/// [sin | cos] of positions (fp64 [n]) at the frequencies 10000^(-i / (dims / 2)): fp32 [n, dims].
[[nodiscard]] at::Tensor sin_cos_positions(const at::Tensor& positions, int64_t dims);

/// The table of a frame whose rows and columns stand at these positions (fp64 [h], [w]), tokens row
/// by row, the column in the first half of the dims: fp32 [1, 1, h w, hidden].
[[nodiscard]] at::Tensor frame_positions(const at::Tensor& rows, const at::Tensor& columns,
                                         int64_t hidden);

/// Side of a square of the clip's pixels over transformer.base_pixels: fp64, no dims, on its
/// device. Of the first sample: those of a batch have one size.
[[nodiscard]] at::Tensor picture_scale(const ModelConfig& config,
                                       const diffusion::Conditions& conditions);

/// The table of Open-Sora's models for any size: a frame is stretched to a square of as many
/// patches, in which a larger picture has finer positions. fp32 [1, 1, S, C].
[[nodiscard]] at::Tensor scaled_positions(const ModelConfig& config, const Grid& grid,
                                          const at::Tensor& scale);

/// PixArt's table: positions are made for the configured size, on a square of as many patches, and
/// frames of other sizes are stretched to it. fp32 [1, 1, S, C].
[[nodiscard]] at::Tensor stretched_positions(const ModelConfig& config, const Grid& grid,
                                             const at::Device& device);

/// Angles for nn::SelfAttention: frequencies fp32 [F], positions [n] -> fp32 [n, 2 F].
[[nodiscard]] at::Tensor rotary_angles(const at::Tensor& frequencies, const at::Tensor& positions);

/// Angles for nn::rotated of every token of a grid, of which axes[0] dims turn by the frame,
/// axes[1] by the row and axes[2] by the column, each axis with frequencies base^(-2 i / dims) of
/// its own: fp32 [T, S, D].
[[nodiscard]] at::Tensor clip_angles(const std::vector<int64_t>& axes, const Grid& grid,
                                     const at::Device& device, double base);
/// The same where frames, rows and columns stand at these positions: fp64 [T], [h], [w].
[[nodiscard]] at::Tensor clip_angles(const std::vector<int64_t>& axes,
                                     const std::vector<at::Tensor>& positions, double base);

// ---- modulation (adaLN-single: Chen et al. 2023, "PixArt-alpha", section 2.3) ----

/// A learned table [rows, C] that starts at N(0, 1 / C); fp32.
[[nodiscard]] nn::Parameter random_table(int64_t rows, int64_t hidden);

/// What frames are conditioned on: those that are noised, and, where a clip has any, those that are
/// given (Conditions::frame_mask).
struct FrameCondition {
  at::Tensor noised;      ///< fp32 [B, C]
  at::Tensor given;       ///< fp32 [B, T or 1, C]; undefined without frame_mask
  at::Tensor frame_mask;  ///< bool [B, T], false where a frame is given; undefined: none is

  /// With `added` [B, C] to both.
  [[nodiscard]] FrameCondition plus(const at::Tensor& added) const;
  /// [B, T, C], or [B, 1, C] without frame_mask.
  [[nodiscard]] at::Tensor of_frames() const;
};

/// t's embedding for noised frames, that of 0 for given ones, or of their levels
/// (Conditions::given_levels, may be undefined) until t is below. t: fp32 [B].
[[nodiscard]] FrameCondition embed_time(const TimestepEmbedder& embedder, const at::Tensor& t,
                                        const at::Tensor& frame_mask,
                                        const at::Tensor& given_levels = {});

/// The n vectors of a Modulation: fp32 [B, T or 1, n, C].
[[nodiscard]] at::Tensor modulation_vectors(const Modulation& modulation,
                                            const FrameCondition& condition);

/// Table [n, C] + vectors [B, T or 1, n or 1, C] as n tensors [B, T or 1, 1, C].
[[nodiscard]] std::vector<at::Tensor> modulation_of(const nn::Parameter& table,
                                                    const at::Tensor& vectors);

// ---- layers; members that hold parameters are named as the published checkpoints' keys ----
// NOLINTBEGIN(readability-identifier-naming)

/// Height, width and ratio: each takes a third of the model's dims.
inline constexpr int64_t kSizeParts = 3;

/// Numbers such as sizes, embedded as times are, each in `hidden` dims: [B] or [B, n] ->
/// [B, n hidden].
class SizeEmbedder : public TimestepEmbedder {
 public:
  explicit SizeEmbedder(int64_t hidden);
  [[nodiscard]] at::Tensor forward(const at::Tensor& values) const;
};

/// Projects captions: [B, L, D] -> [B, L, C] in the weights' type. Where a caption is null (bool
/// [B], undefined: none is) the buffer y_embedding [text_tokens, D] stands for it.
class CaptionEmbedder : public nn::Module {
 public:
  explicit CaptionEmbedder(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& text, const at::Tensor& null_text) const;
  [[nodiscard]] const at::Tensor& null_caption() const { return y_embedding; }

 private:
  nn::Mlp y_proj;
  at::Tensor y_embedding;
};

/// Frequencies of a rotary embedding over `dim` dims: the buffer freqs, fp32 [dim / 2].
class Rope : public nn::Module {
 public:
  explicit Rope(int64_t dim);
  at::Tensor freqs;
};

/// Modulated LayerNorm and projection to patches, fp32. Keys: linear, scale_shift_table.
class CaptionFinalLayer : public nn::Module {
 public:
  explicit CaptionFinalLayer(const ModelConfig& config);
  /// x: [B, T, S', C]. c: the time's embedding, fp32 [B, T or 1, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& c) const;

  // For the fast path, whose blocks end with the modulated norm.
  /// Shift and scale: fp32 [B, T or 1, 2, C].
  [[nodiscard]] at::Tensor modulation(const at::Tensor& c) const;
  [[nodiscard]] at::Tensor project(const at::Tensor& h) const { return linear.forward(h); }

 private:
  nn::Linear linear;
  nn::Parameter scale_shift_table;  // [2, C]
};

/// What every block reads besides its tokens.
struct BlockConditions {
  at::Tensor vectors;       ///< of adaLN-single: fp32 [B, T or 1, 6, C], STDiT2's 9
  at::Tensor text;          ///< projected caption: [B, L, C]
  at::Tensor text_lengths;  ///< int64 [B]
  /// Where defined, bool [B, T, 1, 1] of noised frames; given ones read null_text [B, L, C],
  /// the projected null embedding, as long as the caption (Open-Sora 1.3).
  at::Tensor reads_text{};
  at::Tensor null_text{};
};

/// Self-attention, cross attention to the caption (neither normed nor gated), MLP.
class CaptionBlock : public nn::Module {
 public:
  explicit CaptionBlock(const TransformerConfig& config);

  /// How x [B, T, S', C] goes through the block's self-attention.
  using Attend = std::function<at::Tensor(const nn::SelfAttention& attention, const at::Tensor& x)>;
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockConditions& conditions,
                                   const nn::Sequence& sequence, const Attend& attend) const;

  /// The norm that self-attention reads.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& x, const BlockConditions& conditions) const;

  // For the fast path.
  /// attention: a branch of self-attention with kAttentionVectors.
  [[nodiscard]] ops::Block fast(const FastPass& pass, ops::Branch attention) const;
  [[nodiscard]] const nn::SelfAttention& self_attention() const { return attn; }
  [[nodiscard]] const nn::CrossAttention& cross_attention() const { return cross_attn; }
  /// The learned part of the block's vectors: [6, C].
  [[nodiscard]] at::Tensor table() const;
  /// Those that can compute in fp8, in order.
  [[nodiscard]] std::vector<nn::Linear*> linears();
  static constexpr int64_t kNumVectors = 6;
  static constexpr ops::SeamNumbers kAttentionVectors{.shift = 0, .scale = 1, .gate = 2};
  static constexpr ops::SeamNumbers kMlpVectors{.shift = 3, .scale = 4, .gate = 5};

 protected:
  /// What follows self-attention. m: of modulation_of().
  [[nodiscard]] at::Tensor text_and_mlp(const at::Tensor& x, const BlockConditions& conditions,
                                        const nn::Sequence& sequence,
                                        const std::vector<at::Tensor>& m) const;

  nn::SelfAttention attn;
  nn::CrossAttention cross_attn;
  nn::Mlp mlp;
  nn::Parameter scale_shift_table;  // [6, C]
};

// NOLINTEND(readability-identifier-naming)

// ---- blocks in a model ----

/// Blocks under the key that they have in a model. Those that differ by their place take it: a
/// Block(config, i).
template <typename Block>
class BlockList : public nn::Module {
 public:
  explicit BlockList(const TransformerConfig& config) : BlockList(config, config.depth, 0) {}
  /// `depth` of them, before which there are `before` others.
  BlockList(const TransformerConfig& config, int64_t depth, int64_t before) {
    for (int64_t i = 0; i < depth; ++i) {
      if constexpr (std::is_constructible_v<Block, const TransformerConfig&, int64_t>) {
        items_.push_back(std::make_unique<Block>(config, i));
      } else {
        items_.push_back(std::make_unique<Block>(config));
      }
      items_.back()->set_layer(before + i + 1);
      add_child(std::to_string(i), *items_.back());
    }
  }
  [[nodiscard]] const Block& operator[](int64_t i) const { return *items_[static_cast<size_t>(i)]; }
  [[nodiscard]] Block& operator[](int64_t i) { return *items_[static_cast<size_t>(i)]; }

 private:
  std::vector<std::unique_ptr<Block>> items_;
};

/// The paths of a list's blocks: "blocks.0" to "blocks.<depth - 1>".
[[nodiscard]] std::vector<std::string> numbered(const std::string& list, int64_t depth);

/// Of every block of a list, those that can compute in fp8.
template <typename Block>
[[nodiscard]] std::vector<std::vector<nn::Linear*>> linears_of(BlockList<Block>& blocks,
                                                               int64_t depth) {
  std::vector<std::vector<nn::Linear*>> linears;
  for (int64_t i = 0; i < depth; ++i) {
    linears.push_back(blocks[i].linears());
  }
  return linears;
}

/// What reads the text, in order.
using TextReaders = std::vector<std::function<ops::CrossAttentionBody()>>;

/// Of every block of a list.
template <typename Block>
[[nodiscard]] TextReaders readers_of(const BlockList<Block>& blocks, int64_t depth) {
  TextReaders readers;
  for (int64_t i = 0; i < depth; ++i) {
    readers.push_back([&attention = blocks[i].cross_attention()] { return attention.body(); });
  }
  return readers;
}

/// One of `first`, one of `second`, and so on, for blocks of two lists that are used in turn. Both
/// are as long.
template <typename T>
[[nodiscard]] std::vector<T> in_turn(const std::vector<T>& first, const std::vector<T>& second) {
  std::vector<T> both;
  for (size_t i = 0; i < first.size(); ++i) {
    both.insert(both.end(), {first[i], second[i]});
  }
  return both;
}

/// Sets how parameters start whose path ends with one of `endings`.
void set_init(nn::Module& module, const std::vector<std::string>& endings, nn::Init init);

/// Flat buckets of a model's parameters in forward order: the islands of the embedders; what is no
/// island outside of blocks ("text"); the islands of blocks ("tables"); one of the ring "blocks"
/// for each of `blocks`, paths such as "blocks.0" in order of use; the final layer. Those that
/// would be empty are left out.
[[nodiscard]] std::vector<nn::BucketSpec> block_buckets(nn::Module& model,
                                                        const std::vector<std::string>& blocks);

}  // namespace kinora::models
