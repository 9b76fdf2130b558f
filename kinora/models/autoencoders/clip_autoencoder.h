#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/models/autoencoders/autoencoder.h"

namespace kinora::models {

/// What autoencoders of clips share: shapes are checked, an image becomes a clip of one frame,
/// latents are scaled. What they compute is channels_last, in the weights' type; what they return
/// is fp32 (fp64 where the weights are).
class ClipAutoencoder : public Autoencoder {
 public:
  using Autoencoder::Autoencoder;
  [[nodiscard]] LatentMoments encode(const at::Tensor& pixels) final;
  [[nodiscard]] at::Tensor decode(const at::Tensor& latents) final;

 protected:
  /// pixels: [B, 3, T, H, W]. Raw latents [B, C, t, h, w]; std undefined where there is none.
  [[nodiscard]] virtual LatentMoments encode_clip(const at::Tensor& pixels) = 0;
  /// raw: [B, C, t, h, w].
  [[nodiscard]] virtual at::Tensor decode_clip(const at::Tensor& raw) = 0;

 private:
  [[nodiscard]] at::ScalarType weight_type();
};

/// Mean and deviation of [B, 2 C, ...], means and log variances one after the other.
[[nodiscard]] LatentMoments moments_of(const at::Tensor& values);

}  // namespace kinora::models
