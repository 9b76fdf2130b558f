#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <utility>

// jpeglib.h needs <cstdio> before it.
#include <jerror.h>
#include <jpeglib.h>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/io/image_codecs.h"
#include "kinora/io/image_resize.h"

// libjpeg reports errors by longjmp. The functions that call setjmp therefore hold no objects with
// destructors; the structs around them do, and live in callers that no jump crosses.

namespace kinora::io {
namespace {

// A progressive file may ask for any number of passes over the image, in a few bytes each.
constexpr int kMaxScans = 500;

struct Errors {
  jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
  std::jmp_buf jump;
  std::array<char, JMSG_LENGTH_MAX> text;
};

[[noreturn]] void on_error(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<Errors*>(jpeg->err);
  (*jpeg->err->format_message)(jpeg, errors->text.data());
  std::longjmp(errors->jump, 1);
}

// Level -1 is a warning; traces (0 and more) are not wanted.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) {
    return;
  }
  const int code = jpeg->err->msg_code;
  if (code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM) {
    return;  // odd headers, not damaged data
  }
  on_error(jpeg);
}

void on_progress(j_common_ptr jpeg) {
  if (jpeg->is_decompressor != 0 &&
      reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > kMaxScans) {
    auto* errors = reinterpret_cast<Errors*>(jpeg->err);
    std::snprintf(errors->text.data(), errors->text.size(), "more than %d scans", kMaxScans);
    std::longjmp(errors->jump, 1);
  }
}

struct Decoder {
  Decoder() {
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = on_error;
    errors.base.emit_message = on_message;
    progress.progress_monitor = on_progress;
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&jpeg); }  // harmless before jpeg_create_decompress

  Errors errors{};
  jpeg_progress_mgr progress{};
  jpeg_decompress_struct jpeg{};
};

bool read_header(Decoder& decoder, std::span<const std::byte> bytes) {
  if (setjmp(decoder.errors.jump) != 0) {
    return false;
  }
  j_decompress_ptr jpeg = &decoder.jpeg;
  jpeg_create_decompress(jpeg);
  jpeg->progress = &decoder.progress;
  jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
  // Older libjpegs take the source as non-const, but only read it.
  auto* source = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
  jpeg_mem_src(jpeg, source, static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(jpeg, TRUE);
  return true;
}

// Whether the end marker has been met, or stands in what is left of the file.
bool has_end(j_decompress_ptr jpeg) {
  if (jpeg_input_complete(jpeg) != 0 || jpeg->unread_marker == JPEG_EOI) {
    return true;
  }
  constexpr int kMarker = 0xff;
  const JOCTET* next = jpeg->src->next_input_byte;
  const JOCTET* const end = next + jpeg->src->bytes_in_buffer;
  while ((next = std::find(next, end, kMarker)) != end) {
    if (++next != end && *next == JPEG_EOI) {
      return true;
    }
  }
  return false;
}

// Reads the pixels in `region`, and perhaps others, into `out`, which has room for rows of
// `row_bytes`: RGB, or CMYK where the file has four channels.
bool read_pixels(Decoder& decoder, const Region& region, size_t row_bytes, uint8_t* out) {
  if (setjmp(decoder.errors.jump) != 0) {
    return false;
  }
  j_decompress_ptr jpeg = &decoder.jpeg;
  jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg->dct_method = JDCT_ISLOW;
  jpeg_start_decompress(jpeg);
  const JDIMENSION whole = jpeg->output_width;
  const auto pixel_bytes = static_cast<size_t>(jpeg->output_components);
  // At the edges of a part that begins or ends within the image, colours of coarser resolution are
  // interpolated without their neighbours.
  constexpr JDIMENSION kMargin = 16;
  const auto right = std::min(static_cast<JDIMENSION>(region.right) + kMargin, whole);
  auto left = static_cast<JDIMENSION>(region.left);
  left = left > kMargin ? left - kMargin : 0;
  JDIMENSION width = right - left;
  if (width < whole) {
    jpeg_crop_scanline(jpeg, &left, &width);
  }
  if (region.top > 0) {
    jpeg_skip_scanlines(jpeg, static_cast<JDIMENSION>(region.top));
  }
  while (jpeg->output_scanline < static_cast<JDIMENSION>(region.bottom)) {
    JSAMPROW row = out + jpeg->output_scanline * row_bytes + left * pixel_bytes;
    jpeg_read_scanlines(jpeg, &row, 1);
  }
  if (jpeg->output_scanline == jpeg->output_height) {
    jpeg_finish_decompress(jpeg);  // reads up to the end marker
    return true;
  }
  if (!has_end(jpeg)) {
    std::snprintf(decoder.errors.text.data(), decoder.errors.text.size(), "no end marker");
    return false;
  }
  return true;
}

[[noreturn]] void throw_corrupt(const std::string& name, const Decoder& decoder) {
  throw_error(ErrorKind::kIo, "[image] ", name,
              " must be a whole, valid JPEG; libjpeg says: ", decoder.errors.text.data());
}

// A TIFF structure of EXIF: every read is checked against the end.
class Tiff {
 public:
  Tiff(const unsigned char* data, size_t size) : data_(data), size_(size) {}

  [[nodiscard]] bool start() {
    if (size_ < 8) {
      return false;
    }
    big_endian_ = data_[0] == 'M' && data_[1] == 'M';
    return big_endian_ || (data_[0] == 'I' && data_[1] == 'I');
  }
  [[nodiscard]] bool holds(size_t offset, size_t count) const {
    return offset <= size_ && count <= size_ - offset;
  }
  [[nodiscard]] uint32_t u16(size_t offset) const {
    const uint32_t a = data_[offset];
    const uint32_t b = data_[offset + 1];
    return big_endian_ ? (a << 8) | b : (b << 8) | a;
  }
  [[nodiscard]] uint32_t u32(size_t offset) const {
    const uint32_t a = u16(offset);
    const uint32_t b = u16(offset + 2);
    return big_endian_ ? (a << 16) | b : (b << 16) | a;
  }

 private:
  const unsigned char* data_;
  size_t size_;
  bool big_endian_ = false;
};

// The orientation tag of the first directory (EXIF 2.32, 4.6.4): 1 to 8; 1, upright, where it is
// missing or the block is damaged, which is no fault of the pixels.
int exif_orientation(const jpeg_decompress_struct& jpeg) {
  constexpr size_t kPrefix = 6;  // "Exif\0\0"
  constexpr uint32_t kOrientationTag = 0x0112;
  constexpr uint32_t kShortType = 3;
  for (jpeg_saved_marker_ptr marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->marker != JPEG_APP0 + 1 || marker->data_length < kPrefix ||
        std::memcmp(marker->data, "Exif\0\0", kPrefix) != 0) {
      continue;
    }
    Tiff tiff(marker->data + kPrefix, marker->data_length - kPrefix);
    if (!tiff.start() || tiff.u16(2) != 42) {
      return 1;
    }
    const size_t directory = tiff.u32(4);
    if (!tiff.holds(directory, 2)) {
      return 1;
    }
    const size_t num_entries = tiff.u16(directory);
    for (size_t i = 0; i < num_entries; ++i) {
      const size_t entry = directory + 2 + 12 * i;
      if (!tiff.holds(entry, 12)) {
        return 1;
      }
      if (tiff.u16(entry) == kOrientationTag && tiff.u16(entry + 2) == kShortType) {
        const uint32_t value = tiff.u16(entry + 8);
        return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
      }
    }
    return 1;
  }
  return 1;
}

ImageSize stored_size(const jpeg_decompress_struct& jpeg) {
  return {static_cast<int64_t>(jpeg.image_height), static_cast<int64_t>(jpeg.image_width)};
}

// a * b / 255, rounded.
uint8_t mul_255(uint32_t a, uint32_t b) {
  const uint32_t product = a * b + 128;
  return static_cast<uint8_t>((product + (product >> 8)) >> 8);
}

// Adobe stores CMYK inverted, so a stored value is what is left of the light: R = C' K' / 255,
// rounded as Pillow rounds it: K' - round((255 - C') K' / 255).
void cmyk_to_rgb(const std::vector<uint8_t>& cmyk, std::vector<uint8_t>& rgb) {
  for (size_t pixel = 0; pixel < cmyk.size() / 4; ++pixel) {
    const uint8_t* in = cmyk.data() + pixel * 4;
    for (size_t channel = 0; channel < 3; ++channel) {
      rgb[pixel * 3 + channel] = static_cast<uint8_t>(in[3] - mul_255(255U - in[channel], in[3]));
    }
  }
}

// How many halvings of both sides the crop begins with, as 2 to the power of that, at most 8.
unsigned scale_denominator(const ImageSize& size, const CropHint& hint) {
  int64_t denominator = 1;
  while (denominator < 8 && size.height / (2 * denominator) >= hint.height &&
         size.width / (2 * denominator) >= hint.width) {
    denominator *= 2;
  }
  return static_cast<unsigned>(denominator);
}

void check_channels(const Decoder& decoder, const std::string& name) {
  const int channels = decoder.jpeg.num_components;
  KINORA_CHECK(channels == 1 || channels == 3 || channels == 4, kIo, "[image] ", name,
               ": a JPEG must have 1, 3 or 4 channels, got ", channels);
}

}  // namespace

ImageSize jpeg_size(std::span<const std::byte> bytes, const std::string& name) {
  Decoder decoder;
  if (!read_header(decoder, bytes)) {
    throw_corrupt(name, decoder);
  }
  check_channels(decoder, name);
  const ImageSize size = upright_size(stored_size(decoder.jpeg), exif_orientation(decoder.jpeg));
  check_image_size("JPEG", name, size);
  return size;
}

void decode_jpeg_into(std::span<const std::byte> bytes, const std::string& name, Image& image,
                      const CropHint& hint) {
  Decoder decoder;
  if (!read_header(decoder, bytes)) {
    throw_corrupt(name, decoder);
  }
  check_channels(decoder, name);
  const int orientation = exif_orientation(decoder.jpeg);
  ImageSize size = upright_size(stored_size(decoder.jpeg), orientation);
  check_image_size("JPEG", name, size);
  const ImageSize full = size;
  const bool cmyk = decoder.jpeg.num_components == 4;
  if (!cmyk && orientation == 1) {
    Region region{.bottom = size.height, .right = size.width};
    if (hint.height > 0) {
      const unsigned denominator = hint.may_scale ? scale_denominator(size, hint) : 1;
      decoder.jpeg.scale_denom = denominator;
      size = {ceil_div(size.height, denominator), ceil_div(size.width, denominator)};
      region = center_crop_region(size, hint.height, hint.width);
    }
    set_size(image, size.height, size.width);
    image.full = full;
    if (!read_pixels(decoder, region, static_cast<size_t>(size.width) * 3, image.pixels.data())) {
      throw_corrupt(name, decoder);
    }
    return;
  }
  set_size(image, size.height, size.width);
  const size_t width = decoder.jpeg.image_width;
  const Region whole{.bottom = decoder.jpeg.image_height, .right = decoder.jpeg.image_width};
  // The rare ways go through a buffer of their own.
  const size_t num_pixels = image.pixels.size() / 3;
  std::vector<uint8_t> stored(num_pixels * (cmyk ? 4 : 3));
  if (!read_pixels(decoder, whole, width * (cmyk ? 4 : 3), stored.data())) {
    throw_corrupt(name, decoder);
  }
  if (cmyk) {
    std::vector<uint8_t> rgb(num_pixels * 3);
    cmyk_to_rgb(stored, rgb);
    stored = std::move(rgb);
  }
  orient(stored, static_cast<int64_t>(width), orientation, image);
}

}  // namespace kinora::io
