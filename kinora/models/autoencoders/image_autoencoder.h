#pragma once

#include "kinora/models/autoencoders/autoencoder.h"

namespace kinora::models {

/// What autoencoders of images share: shapes are checked, the frames of clips become a batch,
/// latents are scaled. What they compute is channels_last, in the weights' type; what they return
/// is fp32 (fp64 where the weights are).
class ImageAutoencoder : public Autoencoder {
 public:
  using Autoencoder::Autoencoder;
  [[nodiscard]] LatentMoments encode(const at::Tensor& pixels) final;
  [[nodiscard]] at::Tensor decode(const at::Tensor& latents) final;

 protected:
  /// pixels: [B, 3, H, W], of which a grey autoencoder sees the luma. Raw latents; std undefined
  /// where there is none.
  [[nodiscard]] virtual LatentMoments encode_images(const at::Tensor& pixels) = 0;
  /// raw: [B, C, h, w].
  [[nodiscard]] virtual at::Tensor decode_images(const at::Tensor& raw) = 0;

 private:
  [[nodiscard]] at::ScalarType weight_type();
};

}  // namespace kinora::models
