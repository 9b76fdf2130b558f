#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/layers/band_net.h"
#include "kinora/nn/conv.h"

namespace kinora::models {

/// Fields of diffusers' config.json of AutoencoderKLWan, as Wan 2.1 was published.
struct WanVaeConfig {
  int64_t base_dim = 96;
  int64_t decoder_base_dim = 0;  ///< 0: base_dim
  bool is_residual = false;      ///< of 2.2: levels have shortcuts around them
  int64_t patch_size = 1;        ///< side of a square of pixels that become channels (2.2: 2)
  int64_t z_dim = 16;
  std::vector<int64_t> dim_mult = {1, 2, 4, 4};
  int64_t num_res_blocks = 2;
  /// Whether what halves the sides behind a block halves the frames, too; one entry less than
  /// multipliers.
  std::vector<bool> temporal_downsample = {false, true, true};
  /// A model sees (z - mean) / std; one value a channel.
  std::vector<double> latents_mean = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                      -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                      -0.1922, -0.9497, 0.2503,  -0.2921};
  std::vector<double> latents_std = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
                                     2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
                                     1.6382, 1.1253, 2.8251, 1.9160};
};

/// The causal 3-D autoencoder of Wan 2.1 (Wan team 2025), 4x8x8, and that of 2.2's TI2V, 4x16x16
/// (is_residual, patch_size 2): nothing sees a later frame, and
/// the first frame becomes a latent frame alone. Within a budget clips pass in pieces of frames,
/// which are those of the whole. Parameter names are those of diffusers.
class WanVae : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit WanVae(const WanVaeConfig& config);

  /// Latent frames that decode() takes at once of such latents within the budget, and how it cuts
  /// them.
  [[nodiscard]] int64_t decode_piece(const ClipSize& latents) const;
  [[nodiscard]] nn::BandPlan decode_plan(const ClipSize& latents, bool with_gradients) const;

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  int64_t patch_;
  BandNet encoder_;
  BandNet decoder_;
  nn::Conv quant_conv_;
  nn::Conv post_quant_conv_;
};

}  // namespace kinora::models
