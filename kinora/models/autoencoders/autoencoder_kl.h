#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kinora/models/autoencoders/image_autoencoder.h"
#include "kinora/models/layers/band_layers.h"
#include "kinora/nn/linear.h"

namespace kinora::models {

/// As diffusers' config.json names and starts them.
struct AutoencoderKlConfig {
  int64_t in_channels = 3;
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};  ///< from pixels to latents
  int64_t layers_per_block = 2;
  int64_t latent_channels = 4;
  int64_t norm_num_groups = 32;
  bool use_quant_conv = true;
  bool use_post_quant_conv = true;
  bool mid_block_add_attention = true;
  /// Of each level, from pixels to latents: whether attention follows each of its resnets
  /// (AttnDownEncoderBlock2D, AttnUpDecoderBlock2D). {}: of none.
  std::vector<bool> encoder_attention = {};
  std::vector<bool> decoder_attention = {};
  std::vector<double> scale = {0.18215};  ///< of LatentSpace
  std::vector<double> shift = {0.0};
};

/// conv2(silu(norm2(conv1(silu(norm1(x)))))) + x, or conv_shortcut(x) where channels change.
class KlResnet : public nn::Module {
 public:
  KlResnet(int64_t in_channels, int64_t out_channels, int64_t groups);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const;
  void add_needs(const BandPlace& place, std::vector<nn::BandNeed>& needs) const;

  nn::GroupNorm norm1;
  nn::Conv conv1;
  nn::GroupNorm norm2;
  nn::Conv conv2;
  std::optional<nn::Conv> conv_shortcut;
};

/// Attention of all places to all, one head.
class KlAttention : public nn::Module {
 public:
  KlAttention(int64_t channels, int64_t groups);
  /// x: [B, C, H, W], the whole.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  [[nodiscard]] nn::Bands over(const nn::Bands& x) const;
  [[nodiscard]] nn::BandNeed need(const BandPlace& place) const;

  nn::GroupNorm group_norm;
  nn::Linear to_q;
  nn::Linear to_k;
  nn::Linear to_v;
  nn::Linear to_out;
};

class KlMiddle : public nn::Module {
 public:
  KlMiddle(int64_t channels, int64_t groups, bool has_attention);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const;
  void add_needs(const BandPlace& place, std::vector<nn::BandNeed>& needs) const;

  KlResnet first;
  std::optional<KlAttention> attention;
  KlResnet second;
};

/// Resnets at one resolution, perhaps each with attention behind it, and the convolution to the
/// next, if there is one: a stage of BandPlan, which also makes what it works on, where that is
/// larger.
class KlLevel : public nn::Module {
 public:
  enum class Next { kNone, kHalf, kDouble };
  KlLevel(int64_t in_channels, int64_t out_channels, int64_t groups, int64_t num_resnets,
          bool attends, Next next);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const;
  /// To the last of `stages`, and begins the next; moves `place` to the next resolution.
  void add_needs(BandPlace& place, std::vector<nn::BandStage>& stages) const;

  std::vector<std::unique_ptr<KlResnet>> resnets;
  std::vector<std::unique_ptr<KlAttention>> attentions;  // as many, or none
  std::optional<nn::Conv> resample;

 private:
  Next next_;
};

/// From pixels to what latents are made of, or from latents to pixels, of so many channels.
class KlHalf : public nn::Module {
 public:
  enum class Kind { kEncoder, kDecoder };
  KlHalf(const AutoencoderKlConfig& config, Kind kind, int64_t out_channels);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const;
  /// Of pixels [B, 3, H, W], of whose luma alone an encoder of one channel makes latents, or of
  /// latents [B, C, h, w].
  [[nodiscard]] at::Tensor run(const at::Tensor& x, const nn::BandLimits& limits) const;
  /// place: of the input. `units`: groups of its rows that become whole rows everywhere.
  [[nodiscard]] std::vector<nn::BandStage> stages(BandPlace place, int64_t units) const;

  nn::Conv conv_in;
  std::vector<std::unique_ptr<KlLevel>> levels;  // in the order of computation
  KlMiddle mid_block;
  nn::GroupNorm conv_norm_out;
  nn::Conv conv_out;

 private:
  Kind kind_;
};

/// The space of latents of so many channels. kConfig for sizes that do not fit each other.
[[nodiscard]] LatentSpace kl_space(const AutoencoderKlConfig& config, int64_t channels);

/// The autoencoder of Stable Diffusion 1 to 3 and Flux (Rombach et al. 2022), with the keys of
/// diffusers' AutoencoderKL.
class AutoencoderKl : public ImageAutoencoder {
 public:
  /// kConfig for sizes that do not fit each other.
  explicit AutoencoderKl(const AutoencoderKlConfig& config);

  KlHalf encoder;
  KlHalf decoder;
  std::optional<nn::Conv> quant_conv;
  std::optional<nn::Conv> post_quant_conv;

 protected:
  [[nodiscard]] LatentMoments encode_images(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_images(const at::Tensor& raw) override;
};

}  // namespace kinora::models
