#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

/// Still images: PNG, JPEG, WebP, GIF, BMP and TIFF in, PNG out. Clips go out through animation.h.
namespace kinora::io {

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
};

/// An RGB image with 8 bits a channel; rows from top to bottom without gaps.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 3;         ///< always 3
  std::vector<uint8_t> pixels;  ///< [height, width, channels]
  /// What its file has, upright, where the decoder made it smaller (CropHint::may_scale).
  ImageSize full = {};
};

/// Gives `image` a size, also as its full one; its pixels are unspecified. The memory is reused.
void set_size(Image& image, int64_t height, int64_t width);

/// Limits that are checked before memory is asked for, so that a small hostile file cannot claim a
/// huge image.
inline constexpr int64_t kMaxImageSide = 65535;
inline constexpr int64_t kMaxImagePixels = int64_t{1} << 28;

/// Decodes `bytes`, a PNG, JPEG, WebP, GIF, BMP or TIFF file (told apart by their first bytes),
/// into RGB. TIFF wants the module kinora_tiff.so (kConfig without it).
///
/// Everything becomes RGB as Pillow's convert("RGB") does it, the convention of training code:
///  - alpha and transparent colours are dropped, not composited: the colour stored under them
///  stays;
///  - grey is copied to three channels, palettes are looked up, CMYK and YCCK JPEGs are taken as
///    Adobe writes them (inverted);
///  - gamma and colour profiles are ignored.
/// Two things differ from a bare convert("RGB"): the orientation of JPEGs and TIFFs is applied (as
/// ImageOps.exif_transpose does), and 16 bits a channel are rounded to the nearest 8-bit value (of
/// grey TIFFs to one beside it, too).
/// Of an animation (WebP, APNG, GIF) the first frame is read, of a TIFF the first picture.
///
/// `name` is what error messages call the file. Errors (kIo): another format; a side of zero or
/// beyond the limits above; corrupt or truncated data, also where the codec would only warn.
[[nodiscard]] Image decode_image(std::span<const std::byte> bytes, const std::string& name);

/// What will be made of an image: Resizer::center_crop to this size. Height 0: nobody knows.
struct CropHint {
  int64_t height = 0;
  int64_t width = 0;
  /// The decoder may do halvings of the crop, as powers of 2 in the frequency domain: faster, and
  /// not equal to the box filter.
  bool may_scale = false;
};

/// The same into `image`, whose memory is reused. After an error its contents are unspecified.
///
/// With a hint only what its crop needs need be decoded. Of upright JPEGs the pixels that the crop
/// does not read are unspecified then, and damage below them may go unseen, but not that the file
/// is cut off; with may_scale such a file comes at 1/2, 1/4 or 1/8 of its size (rounded up),
/// whichever is the least whose sides, rounded down, still cover the crop.
void decode_image_into(std::span<const std::byte> bytes, const std::string& name, Image& image,
                       const CropHint& hint = {});

/// The size that decode_image would give (EXIF orientation applied), from the header only.
[[nodiscard]] ImageSize image_size(std::span<const std::byte> bytes, const std::string& name);

/// The PNG file of `image`; the same bytes for the same image and libraries. Error (kShape): not a
/// valid RGB image.
[[nodiscard]] std::vector<std::byte> encode_png(const Image& image);

/// Writes encode_png(image) to `path` atomically: a reader sees the old file or the whole new one.
void write_png(const std::filesystem::path& path, const Image& image);

}  // namespace kinora::io
