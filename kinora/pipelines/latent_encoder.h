#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/models/autoencoders/autoencoder.h"

namespace kinora::pipelines {

/// A frozen autoencoder that turns batches of pictures or clips into latents.
class LatentEncoder {
 public:
  /// Borrows `autoencoder`, whose parameters lie on `device`. `micro_batch`: samples computed at
  /// once.
  LatentEncoder(models::Autoencoder& autoencoder, at::Device device, int64_t micro_batch)
      : autoencoder_(autoencoder), device_(device), micro_batch_(micro_batch) {}

  /// The same by ranks that have the same pixels: each computes some rows of pictures with enough
  /// of them (Autoencoder::divides()), and all have the latents. All of them make the same calls.
  [[nodiscard]] LatentEncoder together(const comm::Group& ranks) const;

  /// Of uint8 [B, 3, H, W] or [B, 3, T, H, W] on the CPU or the device, B at least 1: float32 on
  /// the device, on whose current stream the work is. mirrored: of the pictures mirrored. Errors as
  /// Autoencoder::encode().
  [[nodiscard]] models::LatentMoments encode(const at::Tensor& pixels, bool mirrored = false) const;

  /// What becomes of `frames` frames (1: an image) of that size: [C, h, w], of clips [C, t, h, w],
  /// and whether there is a deviation. Encodes a black one.
  struct Shape {
    std::vector<int64_t> latent;
    bool std = false;
  };
  [[nodiscard]] Shape shape_of(int64_t frames, int64_t height, int64_t width) const;

  [[nodiscard]] const models::LatentSpace& space() const { return autoencoder_.space(); }
  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] int64_t micro_batch() const { return micro_batch_; }

 private:
  models::Autoencoder& autoencoder_;
  at::Device device_;
  int64_t micro_batch_;
  comm::Group ranks_;
};

/// A latent of each sample: mean + std * noise, the mean where there is no std. The noise is that
/// of (seed, sample_index), the place in the stream of samples: the same however it was computed.
/// On the current stream.
[[nodiscard]] at::Tensor draw_latents(const models::LatentMoments& moments,
                                      const at::Tensor& sample_index, uint64_t seed);

}  // namespace kinora::pipelines
