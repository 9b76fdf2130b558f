#include "kinora/io/clip_file.h"

#include "kinora/core/error.h"
#include "kinora/io/animation.h"
#include "kinora/io/video.h"

namespace kinora::io {

void write_clip(const std::filesystem::path& stem, std::span<const Image> frames, double fps,
                ClipFormat format) {
  switch (format) {
    case ClipFormat::kWebp:
      return write_webp(stem.string() + ".webp", frames, fps);
    case ClipFormat::kGif:
      return write_gif(stem.string() + ".gif", frames, fps);
    case ClipFormat::kMp4:
      return write_mp4(stem.string() + ".mp4", frames, {.fps = fps});
  }
  KINORA_UNREACHABLE("[clip] unknown format");
}

void check_can_write(ClipFormat format) {
  if (format == ClipFormat::kMp4) {
    Image grey;
    set_size(grey, 16, 16);
    grey.pixels.assign(grey.pixels.size(), 128);
    (void)encode_mp4(std::span(&grey, 1));
  }
}

}  // namespace kinora::io
