#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/layers/band_net.h"
#include "kinora/nn/conv.h"

namespace kinora::models {

/// Fields of diffusers' config.json of AutoencoderKLHunyuanVideo.
struct HunyuanVaeConfig {
  int64_t latent_channels = 16;
  std::vector<int64_t> block_out_channels = {128, 256, 512, 512};
  int64_t layers_per_block = 2;
  int64_t norm_num_groups = 32;
  int64_t spatial_compression_ratio = 8;   ///< a power of two of at most as many steps as blocks
  int64_t temporal_compression_ratio = 4;  ///< the same
  bool mid_block_add_attention = true;
  double scaling_factor = 0.476986;
};

/// The causal 3-D autoencoder of HunyuanVideo (Kong et al. 2024), used by Open-Sora 2: 4x8x8,
/// convolutions see earlier frames only, the first frame becomes a latent frame alone; attention in
/// the middle sees the frames up to its own. Parameter names are those of diffusers and of the
/// original (AutoencoderKLCausal3D), which are the same.
class HunyuanVae : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit HunyuanVae(const HunyuanVaeConfig& config);

  /// How decode() cuts such latents within the budget.
  [[nodiscard]] nn::BandPlan decode_plan(const ClipSize& latents, bool with_gradients) const;

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  BandNet encoder_;
  BandNet decoder_;
  nn::Conv quant_conv_;
  nn::Conv post_quant_conv_;
};

}  // namespace kinora::models
