#pragma once

#include <string>

#include "kinora/data/source.h"
#include "kinora/io/video.h"

/// Clips of video files as samples.
namespace kinora::data {

/// Fills image, num_frames and fps of `out` with the frames that out.choice asks for, all of them
/// where it asks for none; only those are decoded, and a run of others before them. `name` is the
/// file's; `default_fps` is its rate where it does not say one. Error (kIo): as VideoFile; too few
/// frames; all frames of a long file, above the limits of images.
void read_clip(io::VideoFile& file, const std::string& name, double default_fps, Sample& out);

/// What the header says.
[[nodiscard]] SampleFacts clip_facts(const io::VideoFile& file, double default_fps);

/// The same once every frame was decoded.
[[nodiscard]] SampleFacts check_clip(io::VideoFile& file, double default_fps);

}  // namespace kinora::data
