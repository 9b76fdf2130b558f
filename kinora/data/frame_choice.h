#pragma once

#include <cstdint>
#include <string>

namespace kinora::data {

/// Which frames of a clip a reader takes: `count` of them, every stride-th, from a place drawn. All
/// rates are in frames a second.
struct FrameChoice {
  int64_t count = 1;
  int64_t min_stride = 1;
  double max_fps = 0.0;  ///< thins faster clips; 0: no limit
  float start = 0.5F;    ///< 0: the first frames, below 1: the last ones

  /// The stride in a clip of rate `fps` (0: not known): the least one from min_stride on that makes
  /// the rate at most max_fps. Rates of 1/100 more are let through: files say means, of 30
  /// often 30.05.
  [[nodiscard]] int64_t stride(double fps) const;

  /// Frames of such a clip from the first to the last that is taken.
  [[nodiscard]] int64_t span(double fps) const { return (count - 1) * stride(fps) + 1; }

  /// The first frame taken of `num_frames`, which are at least span(fps).
  [[nodiscard]] int64_t first(int64_t num_frames, double fps) const;

  /// "at least 31 frames for data.frames 16 and data.frame_stride 2": what a clip must have.
  [[nodiscard]] std::string needs(double fps) const;
};

}  // namespace kinora::data
