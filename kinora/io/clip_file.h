#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "kinora/io/image.h"

/// Clips out, each as one file that plays: what animation.h and video.h write.
namespace kinora::io {

enum class ClipFormat : uint8_t {
  kWebp,  ///< lossless
  kGif,   ///< 256 colours
  kMp4,   ///< H.264; wants FFmpeg
};

/// Writes `frames` at `fps` to `stem`.webp, .gif or .mp4, atomically. Errors as encode_webp,
/// encode_gif and encode_mp4.
void write_clip(const std::filesystem::path& stem, std::span<const Image> frames, double fps,
                ClipFormat format);

/// Error (kConfig) where write_clip could not write this format here.
void check_can_write(ClipFormat format);

}  // namespace kinora::io
