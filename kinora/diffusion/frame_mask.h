#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora {
class Fields;
}

namespace kinora::diffusion {

/// What of a clip is given, with weights: the conditions of Open-Sora 2. Those that a clip is too
/// short for, of which a frame must be left, are left out. All 0: none.
struct GivenWeights {
  double t2v = 0.0;            ///< nothing
  double i2v_head = 0.0;       ///< the first frame
  double i2v_loop = 0.0;       ///< the first and the last frame
  double i2v_tail = 0.0;       ///< the last frame
  double v2v_head = 0.0;       ///< the first 33 frames, before they were encoded
  double v2v_tail = 0.0;       ///< the last 33 frames
  double v2v_head_easy = 0.0;  ///< the first 65 frames
  double v2v_tail_easy = 0.0;  ///< the last 65 frames

  [[nodiscard]] double sum() const;
  bool operator==(const GivenWeights&) const = default;
};

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
  GivenWeights weights = {};  ///< in the place of all shares

  /// Of the shares.
  [[nodiscard]] double sum() const;
  /// Whether frames are given at all.
  [[nodiscard]] bool any() const;
  bool operator==(const FrameMaskRatios&) const = default;
};

/// Registers the keys; the caller has opened the scope.
void describe(Fields& fields, FrameMaskRatios& ratios);

/// Names the random numbers of masks.
struct FrameMaskKey {
  uint64_t seed = 0;
  int64_t step = 0;
  at::Tensor sample_index;  ///< int64 [B]
};

/// bool [B, num_frames] on the CPU, true = noised; every clip keeps one such frame at least. By the
/// key alone. Clips of one frame are noised. compression: frames of a clip that became one behind
/// the first, of GivenWeights' 33 and 65.
[[nodiscard]] at::Tensor draw_frame_masks(const FrameMaskRatios& ratios, int64_t num_frames,
                                          const FrameMaskKey& key, int64_t compression = 1);

}  // namespace kinora::diffusion
