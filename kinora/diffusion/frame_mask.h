#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora {
class Fields;
}

namespace kinora::diffusion {

/// How often training shows a model some clean frames of a clip, so that it learns to continue and
/// to fill in: the mask modes of Open-Sora 1.2, each with its share of the clips. What remains has
/// no given frames. A quarter is a random number of frames up to T / 4, at least 1.
struct FrameMaskRatios {
  double random = 0.0;       ///< each frame by itself, with a chance of 0.1 to 0.9
  double interpolate = 0.0;  ///< every other frame
  double quarter_random = 0.0;
  double quarter_head = 0.0;
  double quarter_tail = 0.0;
  double quarter_head_tail = 0.0;
  double image_random = 0.0;  ///< one frame
  double image_head = 0.0;
  double image_tail = 0.0;
  double image_head_tail = 0.0;

  [[nodiscard]] double sum() const;
  bool operator==(const FrameMaskRatios&) const = default;
};

/// Registers the keys; the caller has opened the scope.
void describe(Fields& fields, FrameMaskRatios& ratios);

/// bool [B, num_frames] on the CPU, true = noised; every clip keeps one such frame at least. By
/// (seed, step, sample index) alone. Clips of one frame are noised.
[[nodiscard]] at::Tensor draw_frame_masks(const FrameMaskRatios& ratios, int64_t num_frames,
                                          uint64_t seed, int64_t step,
                                          const at::Tensor& sample_index);

}  // namespace kinora::diffusion
