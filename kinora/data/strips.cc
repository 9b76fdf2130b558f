#include "kinora/data/strips.h"

#include <utility>

#include "kinora/core/error.h"

namespace kinora::data {

StripSource::StripSource(std::unique_ptr<Source> strips, float fps)
    : WrappedSource(std::move(strips)), fps_(fps) {}

void StripSource::read(int64_t index, Sample& out) const {
  WrappedSource::read(index, out);
  const io::Image& strip = out.image;
  KINORA_CHECK(strip.height > 0 && strip.width > 0 && strip.width % strip.height == 0, kIo,
               "[data] ", sample_name(index),
               " must be a strip of square frames, that is, its width a multiple of its height; "
               "got ",
               strip.width, " x ", strip.height, ". Hint: see data.frame_layout.");
  out.num_frames = strip.width / strip.height;
  out.fps = fps_;
}

}  // namespace kinora::data
