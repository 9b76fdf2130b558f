#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/image_autoencoder.h"
#include "kinora/models/layers/band_net.h"
#include "kinora/models/layers/dc_layers.h"

namespace kinora::models {

/// Blocks of one width, and the change of size to or from the next stage.
struct DcAeStage {
  int64_t width = 0;
  int64_t depth = 0;                 ///< blocks; 0 at either end: no change of size of its own
  bool attends = false;              ///< linear attention and gated blocks, else residual ones
  std::vector<int64_t> scales = {};  ///< LinearAttentionOptions::scales
  DcNorm norm = DcNorm::kRms;        ///< of residual blocks and attention
  DcActivation activation = DcActivation::kSilu;  ///< of residual blocks
};

/// Of diffusers' AutoencoderDC, which has the defaults. Stages go from pixels to latents.
struct DcAeConfig {
  int64_t latent_channels = 32;
  int64_t attention_head_dim = 32;
  std::vector<DcAeStage> encoder;
  std::vector<DcAeStage> decoder;
  bool unshuffles = true;  ///< the encoder, DcResize::shuffles
  bool shuffles = true;    ///< the decoder
  bool encoder_out_shortcut = true;
  bool decoder_in_shortcut = true;
  double scaling_factor = 1.0;  ///< a model sees latents times it
};

/// The deep-compression autoencoder of images (Chen et al. 2024), with the keys of diffusers'
/// AutoencoderDC; sides of a latent are 2^(stages - 1) pixels. Not variational: latents have no
/// deviation. A first stage without blocks is passed over by the convolution next to the pixels.
class DcAe : public ImageAutoencoder {
 public:
  /// kConfig for stages that do not fit each other.
  explicit DcAe(const DcAeConfig& config);

 protected:
  [[nodiscard]] LatentMoments encode_images(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_images(const at::Tensor& raw) override;

 private:
  BandNet encoder_;
  BandNet decoder_{1};
};

}  // namespace kinora::models
