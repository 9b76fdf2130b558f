#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "kinora/core/error.h"
#include "kinora/io/image_codecs.h"

// libpng reports errors by longjmp. The functions that call setjmp therefore hold no objects with
// destructors; the structs around them do, and live in callers that no jump crosses.

namespace kinora::io {
namespace {

using ErrorText = std::array<char, 128>;

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* text = static_cast<ErrorText*>(png_get_error_ptr(png));
  std::strncpy(text->data(), message, text->size() - 1);
  png_longjmp(png, 1);
}

// Warnings are about chunks that do not reach the pixels.
void on_warning(png_structp, png_const_charp) {}

struct PngReader {
  explicit PngReader(std::span<const std::byte> bytes) : rest(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error, on_error, on_warning);
    info = png == nullptr ? nullptr : png_create_info_struct(png);
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  std::span<const std::byte> rest;
  ErrorText error{};
  png_structp png = nullptr;
  png_infop info = nullptr;
};

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (reader->rest.size() < count) {
    png_error(png, "the file ends too early");
  }
  std::memcpy(out, reader->rest.data(), count);
  reader->rest = reader->rest.subspan(count);
}

// Up to and with the transformation to 8-bit RGB. Leaves the bytes of an unpacked file row.
bool read_header(PngReader& reader, size_t* file_row_bytes) {
  png_structp png = reader.png;
  if (setjmp(png_jmpbuf(png)) != 0) {
    return false;
  }
  png_set_read_fn(png, &reader, read_bytes);
  png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // ours are checked already
  // -1: every ancillary chunk but tRNS is skipped unread, compressed text and profiles among them.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, reader.info);
  *file_row_bytes = png_get_rowbytes(png, reader.info);
  const png_byte colour = png_get_color_type(png, reader.info);
  png_set_scale_16(png);
  if (colour == PNG_COLOR_TYPE_PALETTE) {
    png_set_palette_to_rgb(png);
  }
  if ((colour & PNG_COLOR_MASK_COLOR) == 0) {
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_gray_to_rgb(png);
  }
  png_set_strip_alpha(png);
  return true;
}

bool read_pixels(PngReader& reader, size_t height, size_t row_bytes, uint8_t* pixels) {
  png_structp png = reader.png;
  if (setjmp(png_jmpbuf(png)) != 0) {
    return false;
  }
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);
  if (png_get_rowbytes(png, reader.info) != row_bytes) {
    png_error(png, "unexpected row size");
  }
  for (int pass = 0; pass < passes; ++pass) {
    for (size_t row = 0; row < height; ++row) {
      png_read_row(png, pixels + row * row_bytes, nullptr);
    }
  }
  png_read_end(png, nullptr);
  return true;
}

[[noreturn]] void throw_corrupt(const std::string& name, const PngReader& reader) {
  throw_error(ErrorKind::kIo, "[image] ", name,
              " must be a whole, valid PNG; libpng says: ", reader.error.data());
}

struct Writer {
  Writer() {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &error, on_error, on_warning);
    info = png == nullptr ? nullptr : png_create_info_struct(png);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { png_destroy_write_struct(&png, &info); }

  std::vector<std::byte> out;
  ErrorText error{};
  png_structp png = nullptr;
  png_infop info = nullptr;
};

// Appends to `out`; false when memory is short, since no exception may cross libpng.
bool append(std::vector<std::byte>& out, const png_byte* data, size_t count) {
  try {
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    out.insert(out.end(), begin, begin + count);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void write_bytes(png_structp png, png_bytep data, size_t count) {
  if (!append(static_cast<Writer*>(png_get_io_ptr(png))->out, data, count)) {
    png_error(png, "out of memory");
  }
}

bool write_image(Writer& writer, const Image& image) {
  png_structp png = writer.png;
  if (setjmp(png_jmpbuf(png)) != 0) {
    return false;
  }
  png_set_write_fn(png, &writer, write_bytes, nullptr);
  png_set_IHDR(png, writer.info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, writer.info);
  for (int64_t row = 0; row < image.height; ++row) {
    png_write_row(png, image.pixels.data() + row * image.width * 3);
  }
  png_write_end(png, nullptr);
  return true;
}

}  // namespace

ImageSize png_size(std::span<const std::byte> bytes, const std::string& name) {
  // Signature (8 bytes), then the first chunk: length, "IHDR", width, height, ... (PNG 11.2.1).
  const auto* data = reinterpret_cast<const png_byte*>(bytes.data());
  KINORA_CHECK(bytes.size() >= 33 && std::memcmp(data + 12, "IHDR", 4) == 0, kIo, "[image] ", name,
               " must be a whole, valid PNG, got one without a header");
  const ImageSize size{static_cast<int64_t>(png_get_uint_32(data + 20)),
                       static_cast<int64_t>(png_get_uint_32(data + 16))};
  check_image_size("PNG", name, size);
  return size;
}

void decode_png_into(std::span<const std::byte> bytes, const std::string& name, Image& image) {
  const ImageSize size = png_size(bytes, name);
  PngReader reader(bytes);
  KINORA_CHECK(reader.info != nullptr, kIo, "[image] ", name, ": libpng could not start");
  size_t file_row_bytes = 0;
  if (!read_header(reader, &file_row_bytes)) {
    throw_corrupt(name, reader);
  }
  // Deflate shrinks at most 1032 times, so a file much smaller than that has lost its pixels: said
  // before they get memory.
  constexpr size_t kMaxDeflateRatio = 1032;
  const size_t file_bytes = file_row_bytes * static_cast<size_t>(size.height);
  KINORA_CHECK(file_bytes / kMaxDeflateRatio <= bytes.size(), kIo, "[image] ", name,
               " must be a whole, valid PNG, got ", bytes.size(), " bytes, which cannot hold ",
               size.width, " x ", size.height, " pixels");
  prepare_image("PNG", name, size, image);
  if (!read_pixels(reader, static_cast<size_t>(size.height), static_cast<size_t>(size.width) * 3,
                   image.pixels.data())) {
    throw_corrupt(name, reader);
  }
}

std::vector<std::byte> encode_png(const Image& image) {
  KINORA_CHECK(image.channels == 3 && image.height > 0 && image.width > 0 &&
                   image.height <= kMaxImageSide && image.width <= kMaxImageSide &&
                   static_cast<int64_t>(image.pixels.size()) == image.height * image.width * 3,
               kShape, "[image] an image to write must be RGB with 1 to ", kMaxImageSide,
               " pixels a side, got ", image.width, " x ", image.height, " with ", image.channels,
               " channels and ", image.pixels.size(), " bytes");
  Writer writer;
  KINORA_CHECK(writer.info != nullptr && write_image(writer, image), kIo,
               "[image] could not encode a PNG; libpng says: ", writer.error.data());
  return std::move(writer.out);
}

}  // namespace kinora::io
