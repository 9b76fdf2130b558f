#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "kinora/io/image.h"

/// Clips out: animated WebP and GIF, or a folder of PNG frames; MP4 is in video.h. A strip of all
/// frames, which data.frame_layout strip reads back, is make_grid of image_grid.h with one row and
/// no padding.
namespace kinora::io {

/// The animated WebP file of `frames`, all of one size: lossless, played again and again at `fps`
/// frames a second, times rounded to milliseconds. Equal neighbours become one longer frame. Errors
/// (kShape): no frames, not valid RGB images of one size; sides beyond 16383, the format's limit;
/// fps not above 0 or above 1000.
[[nodiscard]] std::vector<std::byte> encode_webp(std::span<const Image> frames, double fps);

/// Writes encode_webp(frames, fps) to `path` atomically.
void write_webp(const std::filesystem::path& path, std::span<const Image> frames, double fps);

/// The animated GIF file of `frames`: 256 colours for the whole clip, which is lossless where it
/// has no more; see Palette of palette.h. Played again and again, times rounded to hundredths of a
/// second. Errors as encode_webp, but sides up to 65535 and fps up to 50, as players slow down
/// faster ones.
[[nodiscard]] std::vector<std::byte> encode_gif(std::span<const Image> frames, double fps);

/// Writes encode_gif(frames, fps) to `path` atomically.
void write_gif(const std::filesystem::path& path, std::span<const Image> frames, double fps);

/// Writes the frames as FOLDER/frame_0000.png and on; makes the folder and the folders above it.
/// Errors as write_png; kIo where the folder cannot be made.
void write_frames(const std::filesystem::path& folder, std::span<const Image> frames);

}  // namespace kinora::io
