#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/layers/band_net.h"

namespace kinora::models {

/// Starts as Open-Sora 2's dc-ae-f32t4c128. Lists have an entry a stage, from pixels to latents.
struct VideoDcAeConfig {
  int64_t latent_channels = 128;
  std::vector<int64_t> widths = {128, 256, 512, 512, 1024, 1024};
  std::vector<int64_t> encoder_depths = {2, 2, 2, 3, 3, 3};
  std::vector<int64_t> decoder_depths = {3, 3, 3, 3, 3, 3};
  int64_t first_attention_stage = 3;  ///< earlier ones have convolutions only
  int64_t attention_dim = 32;         ///< channels of a head
  /// Whether frames are halved after a stage; sides are after each but the last.
  std::vector<bool> temporal = {false, false, false, true, true, false};
  /// A model sees latents divided by it. Open-Sora 2 trains with 0.493.
  double scaling_factor = 0.493;
};

/// The deep-compression autoencoder of clips of Open-Sora 2 (after Chen et al. 2024), 4x32x32 to
/// 128 channels; not variational. Frames see later ones too: clips have one frame or at least 8, a
/// multiple of 4. Parameter names are the original's.
class VideoDcAe : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit VideoDcAe(const VideoDcAeConfig& config);

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  BandNet encoder_;
  BandNet decoder_{1};
};

}  // namespace kinora::models
