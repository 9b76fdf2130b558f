#pragma once

#include <ATen/core/Tensor.h>

#include "kinora/core/philox.h"
#include "kinora/ops/random.h"

namespace kinora::diffusion {

/// What training adds to white noise, so that a model also learns what is the same over a whole
/// picture or large parts of it.
struct NoiseShape {
  /// Of one more normal number for each channel, the same at all places (Guttenberg 2023,
  /// "Diffusion with offset noise"); 0: none.
  double offset = 0.0;
  /// d of the pyramid (Whitaker 2023, "Multi-resolution noise"): for i = 1, 2, ... d^i times
  /// normals of sides / 2^i, stretched bilinearly, until a side is 1; the sum is divided so that
  /// its variance is 1 on average over the places. 0: none.
  double pyramid = 0.0;

  [[nodiscard]] bool is_white() const { return offset == 0.0 && pyramid == 0.0; }
};

/// White noise [B, C, ..., H, W] with what `shape` adds. The numbers are those of the samples
/// (kNoiseOffset, kPyramidNoise); frames have their own in the pyramid, and share the offset.
[[nodiscard]] at::Tensor shaped_noise(const at::Tensor& white, const NoiseShape& shape,
                                      const at::Tensor& sample_index, uint64_t seed,
                                      const ops::RandomStep& step);

}  // namespace kinora::diffusion
