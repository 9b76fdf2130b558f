#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

/// Texts that the files of pictures keep beside the pixels: what they were drawn from.
namespace kinora::io {

struct PictureText {
  std::string key;    ///< Latin letters, digits, "_"; 1 to 79 of them
  std::string value;  ///< UTF-8

  bool operator==(const PictureText&) const = default;
};

/// All texts of a file may take so many bytes.
inline constexpr size_t kMostTextBytes = size_t{1} << 20;

/// kShape for keys or sizes beyond the limits.
void check_texts(std::span<const PictureText> texts);

/// The PNG file `png` with `texts` behind its header: chunks tEXt of ASCII, iTXt of others. kShape
/// for keys or sizes beyond the limits; kIo for bytes that are no PNG.
[[nodiscard]] std::vector<std::byte> with_png_texts(std::span<const std::byte> png,
                                                    std::span<const PictureText> texts);

/// The WebP file, still or animated, with `texts` as attributes of one XMP packet. The same errors.
[[nodiscard]] std::vector<std::byte> with_webp_texts(std::span<const std::byte> webp,
                                                     std::span<const PictureText> texts);

/// The GIF file with each of `texts` as a comment, "KEY=VALUE". The same errors.
[[nodiscard]] std::vector<std::byte> with_gif_texts(std::span<const std::byte> gif,
                                                    std::span<const PictureText> texts);

/// The texts of a PNG (tEXt and iTXt that are not compressed), WebP (what with_webp_texts() wrote)
/// or GIF file (comments of that form); none where there are none. The pixels are not decoded. kIo
/// for another format, for a file whose parts do not lie within it, and for more than
/// kMostTextBytes.
[[nodiscard]] std::vector<PictureText> read_texts(std::span<const std::byte> bytes,
                                                  const std::string& name);

/// The same of the file at `path`, which may be a video that FFmpeg reads, too (VideoFile::texts).
[[nodiscard]] std::vector<PictureText> read_file_texts(const std::filesystem::path& path);

}  // namespace kinora::io
