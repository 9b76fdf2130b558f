#pragma once

#include <cstdint>
#include <vector>

#include "kinora/io/ffmpeg_table.h"

namespace kinora::io::ffmpeg {

/// See encode_mp4 of video.h. Fails by Failure.
[[nodiscard]] std::vector<uint8_t> write_clip(const FfmpegClip& clip);

}  // namespace kinora::io::ffmpeg
