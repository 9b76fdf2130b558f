#include "kinora/io/image.h"

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/io/image_codecs.h"

namespace kinora::io {
namespace {

enum class Format { kPng, kJpeg, kWebp, kGif, kBmp, kTiff };

constexpr std::string_view kFormats = "a PNG, JPEG, WebP, GIF, BMP or TIFF image";

bool has_at(std::span<const std::byte> bytes, size_t offset, std::string_view magic) {
  return bytes.size() >= offset + magic.size() &&
         std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
}

Format recognise(std::span<const std::byte> bytes, const std::string& name) {
  using namespace std::string_view_literals;
  KINORA_CHECK(!bytes.empty(), kIo, "[image] ", name, " must be ", kFormats, ", got an empty file");
  if (has_at(bytes, 0, "\x89PNG\r\n\x1a\n"sv)) {
    return Format::kPng;
  }
  if (has_at(bytes, 0, "\xff\xd8\xff"sv)) {
    return Format::kJpeg;
  }
  if (has_at(bytes, 0, "RIFF"sv) && has_at(bytes, 8, "WEBP"sv)) {
    return Format::kWebp;
  }
  if (has_at(bytes, 0, "GIF87a"sv) || has_at(bytes, 0, "GIF89a"sv)) {
    return Format::kGif;
  }
  if (has_at(bytes, 0, "BM"sv)) {
    return Format::kBmp;
  }
  for (const std::string_view magic : {"II*\0"sv, "MM\0*"sv, "II+\0"sv, "MM\0+"sv}) {
    if (has_at(bytes, 0, magic)) {
      return Format::kTiff;
    }
  }
  throw_error(ErrorKind::kIo, "[image] ", name, " must be ", kFormats,
              ", got a file that begins like none of them. Hint: convert other formats first");
}

}  // namespace

void check_image_size(const char* format, const std::string& name, ImageSize size) {
  KINORA_CHECK(size.height > 0 && size.width > 0, kIo, "[image] ", name, ": the ", format,
               " must have at least one pixel, got ", size.width, " x ", size.height);
  KINORA_CHECK(size.height <= kMaxImageSide && size.width <= kMaxImageSide &&
                   size.height * size.width <= kMaxImagePixels,
               kIo, "[image] ", name, ": the ", format, " must have at most ", kMaxImagePixels,
               " pixels and sides of at most ", kMaxImageSide, ", got ", size.width, " x ",
               size.height);
}

void check_clip(const char* format, std::span<const Image> frames, const ClipLimits& limits) {
  KINORA_CHECK(!frames.empty(), kShape,
               "[animation] a clip must have at least one frame, got none");
  KINORA_CHECK(limits.fps > 0.0 && limits.fps <= limits.max_fps, kShape,
               "[animation] the frame rate of ", format, " must be above 0 and at most ",
               limits.max_fps, ", got ", limits.fps);
  const Image& like = frames.front();
  for (const Image& frame : frames) {
    KINORA_CHECK(frame.channels == 3 && frame.height > 0 && frame.width > 0 &&
                     frame.height <= limits.max_side && frame.width <= limits.max_side &&
                     frame.height == like.height && frame.width == like.width &&
                     static_cast<int64_t>(frame.pixels.size()) == frame.height * frame.width * 3,
                 kShape, "[animation] all frames must be RGB of the first one's size, ", like.width,
                 " x ", like.height, ", and at most ", limits.max_side, " pixels a side, got ",
                 frame.width, " x ", frame.height, " with ", frame.channels, " channels and ",
                 frame.pixels.size(), " bytes");
  }
}

void prepare_image(const char* format, const std::string& name, ImageSize size, Image& image) {
  check_image_size(format, name, size);
  set_size(image, size.height, size.width);
}

void set_size(Image& image, int64_t height, int64_t width) {
  image.height = height;
  image.width = width;
  image.channels = 3;
  image.full = {height, width};
  image.pixels.resize(static_cast<size_t>(height * width * 3));
}

ImageSize upright_size(ImageSize stored, int orientation) {
  if (orientation >= 5) {
    std::swap(stored.height, stored.width);
  }
  return stored;
}

void orient(const std::vector<uint8_t>& stored, int64_t stored_width, int orientation,
            Image& image) {
  const int64_t stored_height = static_cast<int64_t>(stored.size()) / (stored_width * 3);
  const bool transposed = orientation >= 5;
  // By orientation 1 to 8: whether the stored row or column is counted from its far end.
  constexpr std::array<bool, 8> kFlipRow = {false, false, true, true, false, true, true, false};
  constexpr std::array<bool, 8> kFlipColumn = {false, true, true, false, false, false, true, true};
  const bool flip_row = kFlipRow[static_cast<size_t>(orientation - 1)];
  const bool flip_column = kFlipColumn[static_cast<size_t>(orientation - 1)];
  uint8_t* out = image.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < image.width; ++x, out += 3) {
      int64_t row = transposed ? x : y;
      int64_t column = transposed ? y : x;
      row = flip_row ? stored_height - 1 - row : row;
      column = flip_column ? stored_width - 1 - column : column;
      std::memcpy(out, stored.data() + (row * stored_width + column) * 3, 3);
    }
  }
}

Image decode_image(std::span<const std::byte> bytes, const std::string& name) {
  Image image;
  decode_image_into(bytes, name, image);
  return image;
}

void decode_image_into(std::span<const std::byte> bytes, const std::string& name, Image& image,
                       const CropHint& hint) {
  switch (recognise(bytes, name)) {
    case Format::kPng:
      return decode_png_into(bytes, name, image);
    case Format::kJpeg:
      return decode_jpeg_into(bytes, name, image, hint);
    case Format::kWebp:
      return decode_webp_into(bytes, name, image);
    case Format::kGif:
      return decode_gif_into(bytes, name, image);
    case Format::kBmp:
      return decode_bmp_into(bytes, name, image);
    case Format::kTiff:
      return decode_tiff_into(bytes, name, image);
  }
}

ImageSize image_size(std::span<const std::byte> bytes, const std::string& name) {
  switch (recognise(bytes, name)) {
    case Format::kPng:
      return png_size(bytes, name);
    case Format::kJpeg:
      return jpeg_size(bytes, name);
    case Format::kWebp:
      return webp_size(bytes, name);
    case Format::kGif:
      return gif_size(bytes, name);
    case Format::kBmp:
      return bmp_size(bytes, name);
    case Format::kTiff:
      return tiff_size(bytes, name);
  }
  KINORA_UNREACHABLE("[image] unknown format");
}

void write_png(const std::filesystem::path& path, const Image& image) {
  write_file_atomic(path, encode_png(image));
}

}  // namespace kinora::io
