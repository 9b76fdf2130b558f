// stb_image reads BMP and nothing else here. It takes what is missing at the end of a file for
// zeros, so that the file is measured before.
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_STDIO
#define STBI_ONLY_BMP
#include <stb/stb_image.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/io/image_codecs.h"

namespace kinora::io {
namespace {

[[noreturn]] void throw_corrupt(const std::string& name, const char* what) {
  throw_error(ErrorKind::kIo, "[image] ", name, " must be a whole, valid BMP, got ", what,
              ". Hint: compressed ones are not read");
}

uint32_t number(std::span<const std::byte> bytes, size_t at, size_t size) {
  uint32_t value = 0;
  for (size_t i = size; i > 0; --i) {
    value = value << 8 | std::to_integer<uint32_t>(bytes[at + i - 1]);
  }
  return value;
}

const stbi_uc* u8(std::span<const std::byte> bytes) {
  return reinterpret_cast<const stbi_uc*>(bytes.data());
}

// Where the headers say that the pixels end.
uint64_t end_of_pixels(std::span<const std::byte> bytes, ImageSize size) {
  constexpr uint32_t kOldHeader = 12;
  const uint32_t bits = number(bytes, number(bytes, 14, 4) == kOldHeader ? 24 : 28, 2);
  const uint64_t row = ceil_div(static_cast<uint64_t>(size.width) * bits, 32) * 4;
  return number(bytes, 10, 4) + row * static_cast<uint64_t>(size.height);
}

}  // namespace

ImageSize bmp_size(std::span<const std::byte> bytes, const std::string& name) {
  constexpr size_t kShortest = 30;  // what end_of_pixels reads
  int width = 0;
  int height = 0;
  int channels = 0;
  if (bytes.size() < kShortest || bytes.size() > std::numeric_limits<int>::max() ||
      stbi_info_from_memory(u8(bytes), static_cast<int>(bytes.size()), &width, &height,
                            &channels) == 0) {
    throw_corrupt(name, "a damaged header");
  }
  const ImageSize size{std::abs(static_cast<int64_t>(height)), width};
  check_image_size("BMP", name, size);
  return size;
}

void decode_bmp_into(std::span<const std::byte> bytes, const std::string& name, Image& image) {
  const ImageSize size = bmp_size(bytes, name);
  if (end_of_pixels(bytes, size) > bytes.size()) {
    throw_corrupt(name, "fewer bytes than its header says");
  }
  int width = 0;
  int height = 0;
  int channels = 0;
  const std::unique_ptr<stbi_uc, decltype(&std::free)> pixels(
      stbi_load_from_memory(u8(bytes), static_cast<int>(bytes.size()), &width, &height, &channels,
                            3),
      &std::free);
  if (pixels == nullptr || width != size.width || height != size.height) {
    throw_corrupt(name, stbi_failure_reason());
  }
  prepare_image("BMP", name, size, image);
  std::copy_n(pixels.get(), image.pixels.size(), image.pixels.begin());
}

}  // namespace kinora::io
