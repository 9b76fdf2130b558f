#include "kinora/data/strips.h"

#include <utility>

#include "kinora/core/error.h"

namespace kinora::data {

StripSource::StripSource(std::unique_ptr<Source> strips, float fps)
    : WrappedSource(std::move(strips)), fps_(fps) {}

int64_t StripSource::num_frames(int64_t index, int64_t height, int64_t width) const {
  KINORA_CHECK(height > 0 && width > 0 && width % height == 0, kIo, "[data] ", sample_name(index),
               " must be a strip of square frames, that is, its width a multiple of its height; "
               "got ",
               width, " x ", height, ". Hint: see data.frame_layout.");
  return width / height;
}

SampleFacts StripSource::of_frames(int64_t index, SampleFacts strip) const {
  strip.num_frames = num_frames(index, strip.height, strip.width);
  strip.width = strip.height;
  strip.fps = fps_;
  return strip;
}

void StripSource::read(int64_t index, Sample& out) const {
  out.crop = {};  // of frames, not of the strip
  WrappedSource::read(index, out);
  out.num_frames = num_frames(index, out.image.height, out.image.width);
  out.fps = fps_;
}

SampleFacts StripSource::facts(int64_t index) const {
  return of_frames(index, WrappedSource::facts(index));
}

SampleFacts StripSource::check(int64_t index, Sample& scratch) const {
  scratch.num_frames = 1;  // the strip is one image to the source inside
  return of_frames(index, WrappedSource::check(index, scratch));
}

}  // namespace kinora::data
