#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kinora/models/unets/unet_config.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"
#include "kinora/nn/layer_norm.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"
#include "kinora/ops/block_stack.h"

/// What U-Nets are made of (Rombach et al. 2022, "High-resolution image synthesis with latent
/// diffusion models", appendix E.2). Members that hold parameters are named as diffusers' keys.
///
/// Shapes: B batch, C channels of a level, H W its rows and columns, N = H W its places, L text
/// tokens, D their width, E width of the embedded time.
namespace kinora::models {

// NOLINTBEGIN(readability-identifier-naming)

/// A picture that is attended to beside a text.
struct ImagePair {
  at::Tensor pair{};  ///< keys and values, [B, T, 2 C]; undefined: none
  double scale = 1.0;
};

/// What blocks read besides x.
struct UnetReads {
  at::Tensor time{};     ///< silu of the embedded time, fp32 [B, E]
  at::Tensor text{};     ///< states of the captions, [B, L, D]
  at::Tensor lengths{};  ///< int32 [B], of the tokens that are read, 1 or more; undefined: all
  /// What the embedded times of ControlNets have added to them, before they embed it: vectors and
  /// sizes, fp32 [B, P]; undefined: nothing.
  at::Tensor sizes{};
  /// What Unet::prepare() made of them, of which `time` (`text`) is not read then.
  at::Tensor prepared_time{};
  std::span<const at::Tensor> prepared_texts{};
  /// Keys and values of a picture beside the text's, for each attention to it (IpAdapter::forward),
  /// and what attention to them is multiplied by. Empty: none.
  std::vector<at::Tensor> image_pairs{};
  double image_scale = 1.0;
  bool new_weights = true;  ///< diffusion::Pass::new_weights

  /// For number `block` of these.
  [[nodiscard]] ImagePair image(size_t block) const {
    return image_pairs.empty() ? ImagePair() : ImagePair{image_pairs[block], image_scale};
  }
};

/// shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x))) + time))), as He et al. 2016 with the time;
/// with UnetConfig::scales_by_time norm2(.) (1 + scale) + shift, both of the time.
class UnetResnet : public nn::Module {
 public:
  UnetResnet(int64_t in_channels, int64_t out_channels, const UnetConfig& config);
  /// x: [B, in, H, W]. Returns [B, out, H, W].
  /// size: rows and columns that x and norm1's result are brought to, half of them by means, more
  /// by repeating; []: they stay.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const UnetReads& reads,
                                   at::IntArrayRef size = {}) const;
  /// The time as it is added to channels, [B, out], or scale and shift, [B, 2 out].
  [[nodiscard]] at::Tensor projected_time(const UnetReads& reads, int64_t batch) const;

  nn::GroupNorm norm1;
  nn::Conv conv1;
  nn::Linear time_emb_proj;
  nn::GroupNorm norm2;
  nn::Conv conv2;
  std::optional<nn::Conv> conv_shortcut;  ///< where widths differ
  int64_t time_channel = 0;               ///< its first one in UnetReads::prepared_time

 private:
  bool scales_by_time_;
};

/// Attention of places to each other or to a text: keys to_q, to_k, to_v without biases, to_out.0.
class UnetAttention : public nn::Module {
 public:
  UnetAttention(int64_t channels, int64_t context_channels, int64_t heads);
  /// x: [B, N, C]; context: [B, M, context_channels]; lengths: as UnetReads'. Returns [B, N, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& context,
                                   const at::Tensor& lengths = {},
                                   const ImagePair& image = {}) const;
  /// For the fast path: attention to themselves of `places`, or to the text. Nothing where the
  /// weights of what is projected together do not lie together.
  [[nodiscard]] std::optional<ops::SelfAttentionBody> self_body(int64_t places) const;
  [[nodiscard]] std::optional<ops::CrossAttentionBody> cross_body() const;

  nn::Linear to_q;
  nn::Linear to_k;
  nn::Linear to_v;
  nn::Linear to_out;

 private:
  int64_t heads_;
};

/// fc2(h * GELU(g)) with [h, g] = fc1(x) (Shazeer 2020, "GLU variants improve transformer"): keys
/// net.0.proj, net.2.
class GatedMlp : public nn::Module {
 public:
  explicit GatedMlp(int64_t channels);
  /// x: [B, N, C]. Returns [B, N, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  [[nodiscard]] ops::GatedMlpBody body() const { return {fc1.weights(), fc2.weights()}; }

  nn::Linear fc1;  // [8 C, C]
  nn::Linear fc2;  // [C, 4 C]
};

/// Linears on the same input, which the fast path computes as one product where they lie together.
struct UnetProduct {
  std::string name;  ///< of the linears: "attn1.to_q, to_k, to_v"
  std::vector<nn::Linear*> linears;

  [[nodiscard]] int64_t in() const { return linears.front()->weight.shape[1]; }
  [[nodiscard]] int64_t out() const;
  /// Whether fp8 can compute it, if it is one product.
  [[nodiscard]] bool fits_fp8() const;
};

/// x + attn1(norm1(x)), + attn2(norm2(.), text), + ff(norm3(.)).
class UnetTransformerBlock : public nn::Module {
 public:
  UnetTransformerBlock(int64_t channels, int64_t text_channels, int64_t heads);
  /// x: [B, N, C]; number: of UnetReads::image. Returns [B, N, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const UnetReads& reads,
                                   size_t number) const;
  /// For the fast path, its vectors the shifts and scales of the norms; nothing where a linear has
  /// an update other than LoRA or where an attention has no body.
  [[nodiscard]] std::optional<ops::Block> fast(int64_t places) const;
  /// In order of use.
  [[nodiscard]] std::vector<UnetProduct> products();

  nn::LayerNorm norm1;
  UnetAttention attn1;
  nn::LayerNorm norm2;
  UnetAttention attn2;
  nn::LayerNorm norm3;
  GatedMlp ff;
};

/// x + proj_out(blocks(proj_in(norm(x)))) over the places of x.
class UnetTransformer : public nn::Module {
 public:
  UnetTransformer(int64_t channels, int64_t text_channels, int64_t heads, int64_t depth,
                  int64_t norm_groups);
  /// x: [B, C, H, W], which may be overwritten without gradients. Returns [B, C, H, W].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const UnetReads& reads) const;
  /// Sampling on the fast path: what does not depend on x, for Prepared::of_texts.
  [[nodiscard]] std::vector<at::Tensor> prepare(const at::Tensor& text) const;

  /// How many products of the blocks can compute in fp8, if the blocks are a stack.
  [[nodiscard]] int64_t num_fp8_products();
  /// Gives these numbers from `first` on, in order of use, and returns their weights, by blocks.
  /// None without a stack: what is one product may lie apart, as of linears of which some are
  /// frozen.
  [[nodiscard]] std::vector<std::vector<ops::LinearWeights>> number_products(int64_t first);
  /// What of the blocks does not compute in fp8, and why, each a sentence that begins with `path`,
  /// this module's.
  [[nodiscard]] std::vector<std::string> what_stays(const std::string& path);

  nn::GroupNorm norm;
  nn::Linear proj_in;
  std::vector<std::unique_ptr<UnetTransformerBlock>> transformer_blocks;
  nn::Linear proj_out;
  size_t first_prepared = 0;                         ///< in UnetReads::prepared_texts
  size_t first_image = 0;                            ///< likewise in image_pairs
  ops::Recompute recompute = ops::Recompute::kNone;  ///< of the fast path

 private:
  /// The blocks as a stack for the fast path; nothing where it is not taken.
  [[nodiscard]] std::optional<ops::BlockStack> stack(int64_t places) const;
  /// The stack's vectors: fp32 [1, n C].
  [[nodiscard]] at::Tensor norm_vectors() const;
  [[nodiscard]] at::Tensor run(ops::BlockStack stack, const at::Tensor& tokens,
                               const UnetReads& reads) const;
};

/// x + to_out(attention(qkv(norm(x)))) of the places of x to each other (Ho et al. 2020, "Denoising
/// diffusion probabilistic models"): keys group_norm, qkv (of diffusers to_q, to_k, to_v),
/// to_out.0.
class UnetPlaceAttention : public nn::Module {
 public:
  UnetPlaceAttention(int64_t channels, int64_t heads, const UnetConfig& config);
  /// x: [B, C, H, W]. Returns the same shape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

  nn::GroupNorm group_norm;
  nn::Linear qkv;
  nn::Linear to_out;

 private:
  int64_t heads_;
};

/// A residual block and what attends behind it.
class UnetUnit {
 public:
  /// depth: transformer blocks; 0: none attends.
  UnetUnit(int64_t in_channels, int64_t out_channels, const UnetConfig& config,
           int64_t text_channels, int64_t heads, int64_t depth);
  /// x: [B, in, H, W]. Returns [B, out, H, W].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const UnetReads& reads) const;
  /// What attends, for who registers it; null: none does.
  [[nodiscard]] nn::Module* attending();
  /// Null: no transformer does.
  [[nodiscard]] UnetTransformer* transformer() { return attention ? &*attention : nullptr; }

  UnetResnet resnet;
  std::optional<UnetTransformer> attention;
  std::optional<UnetPlaceAttention> place_attention;
};

/// A level on one of the ways: keys resnets.I, attentions.I, and downsamplers.0.conv or
/// upsamplers.0.conv, of UnetConfig::resizes_in_blocks without conv.
class UnetLevel : public nn::Module {
 public:
  enum class Next { kNone, kHalf, kDouble };
  /// in_channels: of each unit.
  UnetLevel(const std::vector<int64_t>& in_channels, int64_t channels, const UnetConfig& config,
            int64_t text_channels, int64_t heads, int64_t depth, Next next);

  /// A unit alone.
  [[nodiscard]] at::Tensor forward(size_t unit, const at::Tensor& x, const UnetReads& reads) const {
    return units_[unit]->forward(x, reads);
  }
  [[nodiscard]] size_t num_units() const { return units_.size(); }
  [[nodiscard]] UnetUnit& unit(size_t number) { return *units_[number]; }

  [[nodiscard]] bool changes_size() const { return resample_ || resize_block_; }
  /// The block that does; null: a convolution does, or none.
  [[nodiscard]] UnetResnet* resize_block() { return resize_block_ ? &*resize_block_ : nullptr; }
  /// x at half the size, rounded up: [B, C, (H + 1) / 2, (W + 1) / 2].
  [[nodiscard]] at::Tensor halved(const at::Tensor& x, const UnetReads& reads) const;
  /// x with every row and column twice, but for what is beyond rows x columns.
  [[nodiscard]] at::Tensor doubled(const at::Tensor& x, int64_t rows, int64_t columns,
                                   const UnetReads& reads) const;
  /// What doubled() does not make again, for Prepared::of_texts.
  [[nodiscard]] at::Tensor prepare_doubling() const { return resample_->doubled_phases(); }

  size_t prepared_doubling = 0;  ///< in UnetReads::prepared_texts

 private:
  std::vector<std::unique_ptr<UnetUnit>> units_;
  std::optional<nn::Conv> resample_;
  std::optional<UnetResnet> resize_block_;
};

/// Between the ways: keys resnets.0, attentions.0, resnets.1.
class UnetMiddle : public nn::Module {
 public:
  UnetMiddle(const UnetConfig& config, int64_t text_channels);
  /// x: [B, C, H, W]. Returns the same shape.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const UnetReads& reads) const;

  UnetUnit first;
  UnetResnet second;
};

/// The shape of a convolution of 3 x 3 places whose weight lies in channels_last order.
[[nodiscard]] nn::ConvShape unet_conv(int64_t in_channels, int64_t out_channels);

/// `count` sinusoids of each number, cosines first, of periods up to 10000 in count / 2 - shift
/// steps: fp32 [...] to [..., count].
[[nodiscard]] at::Tensor unet_sinusoids(const at::Tensor& numbers, int64_t count, int64_t shift = 0,
                                        bool sines_first = false);

/// A learned vector of each class, and one more of the null class: key weight.
class UnetClassVectors : public nn::Module {
 public:
  UnetClassVectors(int64_t num_classes, int64_t width);
  /// labels: int64 [B]. Returns fp32 [B, width].
  [[nodiscard]] at::Tensor forward(const at::Tensor& labels) const;

  nn::Parameter weight;
};

/// fc2(silu(fc1(x))) in fp32: keys linear_1, linear_2.
class UnetEmbedding : public nn::Module {
 public:
  /// inputs: how many numbers become E = width.
  UnetEmbedding(int64_t inputs, int64_t width);
  /// x: fp32 [B, inputs]. Returns fp32 [B, E].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;

 private:
  nn::Linear linear_1;
  nn::Linear linear_2;
};

// NOLINTEND(readability-identifier-naming)

}  // namespace kinora::models
