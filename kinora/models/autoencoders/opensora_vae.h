#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/models/autoencoders/clip_autoencoder.h"
#include "kinora/models/autoencoders/temporal_vae.h"

namespace kinora::models {

/// Starts as OpenSoraVAE_V1_2.
struct OpenSoraVaeConfig {
  AutoencoderKlConfig spatial = {};
  TemporalVaeConfig temporal = {};
  int64_t micro_frame_size = 17;  ///< frames that the temporal one sees at once
  /// A model sees (z - shift) / scale; one value a channel.
  std::vector<double> shift = {-0.10, 0.34, 0.27, 0.98};
  std::vector<double> scale = {3.85, 2.32, 2.33, 3.06};
};

/// The autoencoder of Open-Sora 1.2, 4x8x8: frames pass one by one through an autoencoder of
/// images, and their latents (the means) through a temporal one, in chunks that know nothing of
/// each other. Parameter names are the original's.
class OpenSoraVae : public ClipAutoencoder {
 public:
  /// kConfig.
  explicit OpenSoraVae(const OpenSoraVaeConfig& config);

 protected:
  [[nodiscard]] LatentMoments encode_clip(const at::Tensor& pixels) override;
  [[nodiscard]] at::Tensor decode_clip(const at::Tensor& raw) override;

 private:
  AutoencoderKl spatial_;
  TemporalVae temporal_;
};

}  // namespace kinora::models
