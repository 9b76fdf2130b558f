#include "kinora/data/video_clip.h"

#include "kinora/core/error.h"

namespace kinora::data {
namespace {

// As precise as samples hold it, so that all find the same stride.
float rate_of(const io::VideoFile& file, double default_fps) {
  return static_cast<float>(file.info().fps > 0.0 ? file.info().fps : default_fps);
}

}  // namespace

void read_clip(io::VideoFile& file, const std::string& name, double default_fps, Sample& out) {
  const float fps = rate_of(file, default_fps);
  const int64_t num_frames = file.num_frames();
  const FrameChoice choice = out.choice.value_or(FrameChoice{.count = num_frames});
  KINORA_CHECK(choice.span(fps) <= num_frames, kIo, "[data] ", name, " must have ",
               choice.needs(fps), ", got ", num_frames);
  const io::VideoInfo& info = file.info();
  KINORA_CHECK(choice.count <= io::kMaxImagePixels / (info.height * info.width), kIo, "[data] ",
               name, " must give frames of together at most ", io::kMaxImagePixels, " pixels, got ",
               choice.count, " of ", info.width, " x ", info.height);
  file.read_frames(choice.first(num_frames, fps), choice.count, choice.stride(fps), out.image);
  out.num_frames = choice.count;
  out.fps = fps;
  out.is_chosen = true;
}

SampleFacts clip_facts(const io::VideoFile& file, double default_fps) {
  const io::VideoInfo& info = file.info();
  return {.height = info.height,
          .width = info.width,
          .num_frames = info.declared_frames,
          .fps = rate_of(file, default_fps)};
}

SampleFacts check_clip(io::VideoFile& file, double default_fps) {
  SampleFacts facts = clip_facts(file, default_fps);
  facts.num_frames = file.check_frames();
  return facts;
}

}  // namespace kinora::data
