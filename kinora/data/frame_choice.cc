#include "kinora/data/frame_choice.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace kinora::data {

int64_t FrameChoice::stride(double fps) const {
  if (max_fps <= 0.0 || fps <= max_fps) {
    return min_stride;
  }
  constexpr double kTolerance = 0.01;
  return std::max(min_stride, static_cast<int64_t>(std::ceil(fps / max_fps / (1.0 + kTolerance))));
}

int64_t FrameChoice::first(int64_t num_frames, double fps) const {
  const int64_t num_starts = num_frames - span(fps) + 1;
  return static_cast<int64_t>(static_cast<double>(start) * static_cast<double>(num_starts));
}

std::string FrameChoice::needs(double fps) const {
  std::ostringstream text;
  text << "at least " << span(fps) << " frames for data.frames " << count;
  if (stride(fps) == min_stride) {
    text << " and data.frame_stride " << min_stride;
  } else {
    text << " and data.max_fps " << max_fps << " at " << fps << " frames a second";
  }
  return text.str();
}

}  // namespace kinora::data
