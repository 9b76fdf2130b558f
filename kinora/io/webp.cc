#include <webp/decode.h>

#include <array>
#include <cstring>

#include "kinora/core/error.h"
#include "kinora/io/image_codecs.h"

namespace kinora::io {
namespace {

const uint8_t* u8(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

uint32_t u24(const uint8_t* data) {
  return data[0] | (data[1] << 8) | (data[2] << 16);
}
uint32_t u32(const uint8_t* data) {
  return u24(data) | (static_cast<uint32_t>(data[3]) << 24);
}

[[noreturn]] void throw_corrupt(const std::string& name, const char* what) {
  throw_error(ErrorKind::kIo, "[image] ", name, " must be a whole, valid WebP, got ", what);
}

WebPBitstreamFeatures read_features(std::span<const std::byte> bytes, const std::string& name) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(u8(bytes), bytes.size(), &features) != VP8_STATUS_OK) {
    throw_corrupt(name, "a damaged header");
  }
  check_image_size("WebP", name, {features.height, features.width});
  return features;
}

// Where the first frame of an animation lies: its data, as a file without container, and its place.
struct Frame {
  std::span<const std::byte> data;
  int64_t left = 0;
  int64_t top = 0;
};

// Walks the chunks of the container (WebP Container Specification, "Animation").
Frame first_frame(std::span<const std::byte> bytes, const std::string& name) {
  constexpr size_t kChunkHeader = 8;   // name and size
  constexpr size_t kFrameHeader = 16;  // left/2, top/2, width-1, height-1, duration, flags
  size_t offset = 12;                  // behind "RIFF", size, "WEBP"
  while (bytes.size() - offset >= kChunkHeader) {
    const uint8_t* chunk = u8(bytes) + offset;
    const size_t size = u32(chunk + 4);
    if (size > bytes.size() - offset - kChunkHeader) {
      break;
    }
    if (std::memcmp(chunk, "ANMF", 4) == 0 && size > kFrameHeader) {
      return {bytes.subspan(offset + kChunkHeader + kFrameHeader, size - kFrameHeader),
              2 * static_cast<int64_t>(u24(chunk + 8)), 2 * static_cast<int64_t>(u24(chunk + 11))};
    }
    offset += kChunkHeader + size + (size & 1);
    if (offset > bytes.size()) {
      break;
    }
  }
  throw_corrupt(name, "an animation without a whole first frame");
}

// Decodes a still picture to rows of `stride` bytes; false when the data is damaged.
bool decode_rgb(std::span<const std::byte> bytes, uint8_t* out, size_t out_size, int64_t stride) {
  return WebPDecodeRGBInto(u8(bytes), bytes.size(), out, out_size, static_cast<int>(stride)) !=
         nullptr;
}

}  // namespace

ImageSize webp_size(std::span<const std::byte> bytes, const std::string& name) {
  const WebPBitstreamFeatures features = read_features(bytes, name);
  return {features.height, features.width};
}

void decode_webp_into(std::span<const std::byte> bytes, const std::string& name, Image& image) {
  const WebPBitstreamFeatures features = read_features(bytes, name);
  if (u32(u8(bytes) + 4) > bytes.size() - 8) {
    throw_corrupt(name, "fewer bytes than its header says");
  }
  Frame frame{bytes};
  ImageSize frame_size{features.height, features.width};
  if (features.has_animation != 0) {
    frame = first_frame(bytes, name);
    const WebPBitstreamFeatures inner = read_features(frame.data, name);
    frame_size = {inner.height, inner.width};
    if (frame.left + inner.width > features.width || frame.top + inner.height > features.height) {
      throw_corrupt(name, "a first frame beyond its canvas");
    }
  }
  prepare_image("WebP", name, {features.height, features.width}, image);
  if (frame_size.height != image.height || frame_size.width != image.width) {
    // The canvas of an animation starts transparent, which is black once alpha is dropped.
    std::memset(image.pixels.data(), 0, image.pixels.size());
  }
  const int64_t stride = image.width * 3;
  const size_t start = static_cast<size_t>(frame.top * stride + frame.left * 3);
  if (!decode_rgb(frame.data, image.pixels.data() + start, image.pixels.size() - start, stride)) {
    throw_corrupt(name, "damaged pixel data");
  }
}

}  // namespace kinora::io
