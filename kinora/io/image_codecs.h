#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kinora/io/image.h"

/// The codecs behind image.h, one file each. Not for use outside io/.
namespace kinora::io {

/// Checks the limits of image.h and gives `image` that size. `format` is for the message.
void prepare_image(const char* format, const std::string& name, ImageSize size, Image& image);

/// Checks the limits of image.h.
void check_image_size(const char* format, const std::string& name, ImageSize size);

/// Of a picture stored with that orientation: 1, upright, to 8, as EXIF numbers them.
[[nodiscard]] ImageSize upright_size(ImageSize stored, int orientation);

/// Writes the stored pixels (RGB) upright into `image`, which has its upright size.
void orient(const std::vector<uint8_t>& stored, int64_t stored_width, int orientation,
            Image& image);

struct ClipLimits {
  int64_t max_side = 0;
  double fps = 0.0;  ///< asked for
  double max_fps = 0.0;
};

/// Checks frames to be written as `format`: at least one, all valid RGB images of one size within
/// the limits, fps above 0. Error kShape.
void check_clip(const char* format, std::span<const Image> frames, const ClipLimits& limits);

[[nodiscard]] ImageSize png_size(std::span<const std::byte> bytes, const std::string& name);
void decode_png_into(std::span<const std::byte> bytes, const std::string& name, Image& image);

[[nodiscard]] ImageSize jpeg_size(std::span<const std::byte> bytes, const std::string& name);
void decode_jpeg_into(std::span<const std::byte> bytes, const std::string& name, Image& image,
                      const CropHint& hint);

[[nodiscard]] ImageSize webp_size(std::span<const std::byte> bytes, const std::string& name);
void decode_webp_into(std::span<const std::byte> bytes, const std::string& name, Image& image);

[[nodiscard]] ImageSize gif_size(std::span<const std::byte> bytes, const std::string& name);
void decode_gif_into(std::span<const std::byte> bytes, const std::string& name, Image& image);

[[nodiscard]] ImageSize bmp_size(std::span<const std::byte> bytes, const std::string& name);
void decode_bmp_into(std::span<const std::byte> bytes, const std::string& name, Image& image);

[[nodiscard]] ImageSize tiff_size(std::span<const std::byte> bytes, const std::string& name);
void decode_tiff_into(std::span<const std::byte> bytes, const std::string& name, Image& image);

}  // namespace kinora::io
