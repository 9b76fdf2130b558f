#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/layers/band_net.h"

namespace kinora::models {

/// Fields of diffusers' config.json of AutoencoderKLCogVideoX.
struct CogVideoXVaeConfig {
  int64_t latent_channels = 16;
  std::vector<int64_t> block_out_channels = {128, 256, 256, 512};
  int64_t layers_per_block = 3;
  int64_t norm_num_groups = 32;
  double norm_eps = 1e-6;
  int64_t temporal_compression_ratio = 4;  ///< a power of two
  double scaling_factor = 1.15258426;
  bool invert_scale_latents = false;  ///< LatentSpace::inverts_shown
};

/// The causal 3-D autoencoder of CogVideoX (Yang et al. 2024), 4x8x8. Its norms see pieces of a
/// clip, of 8 frames and of 2 latent frames as published, the first one also with what is over; so
/// these are a part of the autoencoder, whatever the budget. Of an odd number of latent frames the
/// first one makes one frame; an even number makes 4 of each. Parameter names are those of
/// diffusers.
class CogVideoXVae : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit CogVideoXVae(const CogVideoXVaeConfig& config);

  /// How decode() cuts such latents within the budget.
  [[nodiscard]] nn::BandPlan decode_plan(const ClipSize& latents, bool with_gradients) const;

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  BandNet encoder_;
  BandNet decoder_;
};

}  // namespace kinora::models
