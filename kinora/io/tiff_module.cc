// kinora_tiff.so: libtiff behind tiff_table.h.
#include <tiffio.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kinora/core/module_file.h"
#include "kinora/io/tiff_table.h"

namespace {

struct Memory {
  const uint8_t* bytes;
  size_t size;
  char* error;
  size_t error_size;
  size_t offset = 0;
};

tmsize_t read_bytes(thandle_t handle, void* out, tmsize_t count) {
  auto* memory = static_cast<Memory*>(handle);
  const size_t begin = std::min(memory->offset, memory->size);
  const size_t size = std::min(memory->size - begin, static_cast<size_t>(count));
  std::memcpy(out, memory->bytes + begin, size);
  memory->offset = begin + size;
  return static_cast<tmsize_t>(size);
}
tmsize_t cannot_write(thandle_t, void*, tmsize_t) {
  return -1;
}
toff_t seek(thandle_t handle, toff_t offset, int whence) {
  auto* memory = static_cast<Memory*>(handle);
  const size_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? memory->offset : memory->size;
  return memory->offset = base + offset;
}
int close_memory(thandle_t) {
  return 0;
}
toff_t size_of(thandle_t handle) {
  return static_cast<Memory*>(handle)->size;
}

// The first of several errors is the cause.
int keep_error(TIFF*, void* user, const char*, const char* format, va_list arguments) {
  auto* memory = static_cast<Memory*>(user);
  if (memory->error[0] == '\0') {
    std::vsnprintf(memory->error, memory->error_size, format, arguments);
  }
  return 1;
}
int no_warning(TIFF*, void*, const char*, const char*, va_list) {
  return 1;
}

struct Close {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
using Tiff = std::unique_ptr<TIFF, Close>;

// Of what libtiff allocates at once beside the picture: strips, tiles and tables.
constexpr tmsize_t kMostBytes = tmsize_t{1} << 30;

Tiff open(Memory& memory) {
  memory.error[0] = '\0';
  TIFFOpenOptions* options = TIFFOpenOptionsAlloc();
  if (options == nullptr) {
    return nullptr;
  }
  TIFFOpenOptionsSetMaxSingleMemAlloc(options, kMostBytes);
  TIFFOpenOptionsSetErrorHandlerExtR(options, keep_error, &memory);
  TIFFOpenOptionsSetWarningHandlerExtR(options, no_warning, nullptr);
  Tiff tiff(TIFFClientOpenExt("picture", "rm", &memory, read_bytes, cannot_write, seek,
                              close_memory, size_of, nullptr, nullptr, options));
  TIFFOpenOptionsFree(options);
  return tiff;
}

bool read_header(TIFF* tiff, KinoraTiffPicture* picture) {
  uint32_t height = 0;
  uint32_t width = 0;
  uint16_t orientation = 1;
  if (TIFFGetField(tiff, TIFFTAG_IMAGELENGTH, &height) == 0 ||
      TIFFGetField(tiff, TIFFTAG_IMAGEWIDTH, &width) == 0) {
    return false;
  }
  TIFFGetFieldDefaulted(tiff, TIFFTAG_ORIENTATION, &orientation);
  const bool is_known = orientation >= 1 && orientation <= 8;
  *picture = {.height = height,
              .width = width,
              .orientation = is_known ? orientation : int32_t{1},
              .pixels = nullptr};
  return true;
}

// Colours under alpha stay as they are stored: libtiff multiplies only what is not said to be so
// already.
void keep_colours_under_alpha(TIFF* tiff) {
  uint16_t count = 0;
  uint16_t* kinds = nullptr;
  if (TIFFGetField(tiff, TIFFTAG_EXTRASAMPLES, &count, &kinds) == 0 || count == 0) {
    return;
  }
  std::array<uint16_t, 16> same;
  same.fill(EXTRASAMPLE_ASSOCALPHA);
  if (count <= same.size()) {
    TIFFSetField(tiff, TIFFTAG_EXTRASAMPLES, count, same.data());
  }
}

bool read_pixels(TIFF* tiff, KinoraTiffPicture* picture, Memory& memory) {
  std::array<char, 1024> why{};
  TIFFRGBAImage image;
  keep_colours_under_alpha(tiff);
  if (TIFFRGBAImageOK(tiff, why.data()) == 0 ||
      TIFFRGBAImageBegin(&image, tiff, /*stop=*/1, why.data()) == 0) {
    std::snprintf(memory.error, memory.error_size, "%s", why.data());
    return false;
  }
  image.req_orientation = image.orientation;  // rows as they are stored
  const auto count = static_cast<size_t>(picture->height) * static_cast<size_t>(picture->width);
  picture->pixels = static_cast<uint32_t*>(std::calloc(count, sizeof(uint32_t)));
  const bool is_read = picture->pixels != nullptr &&
                       TIFFRGBAImageGet(&image, picture->pixels, image.width, image.height) != 0 &&
                       memory.error[0] == '\0';
  TIFFRGBAImageEnd(&image);
  return is_read;
}

void release(KinoraTiffPicture* picture) {
  std::free(picture->pixels);
  picture->pixels = nullptr;
}

bool header_of(const uint8_t* bytes, size_t size, KinoraTiffPicture* picture, char* error,
               size_t error_size) {
  Memory memory{bytes, size, error, error_size};
  const Tiff tiff = open(memory);
  return tiff != nullptr && read_header(tiff.get(), picture);
}

bool read(const uint8_t* bytes, size_t size, KinoraTiffPicture* picture, char* error,
          size_t error_size) {
  Memory memory{bytes, size, error, error_size};
  const Tiff tiff = open(memory);
  if (tiff == nullptr || !read_header(tiff.get(), picture)) {
    return false;
  }
  const bool is_read = read_pixels(tiff.get(), picture, memory);
  if (!is_read) {
    release(picture);
  }
  return is_read;
}

constexpr KinoraTiffTable kTable = {.read_header = header_of, .read = read, .release = release};

}  // namespace

extern "C" KINORA_MODULE_EXPORT const KinoraTiffTable* kinora_tiff_1() {
  return &kTable;
}
