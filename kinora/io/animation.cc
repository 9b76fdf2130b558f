#include "kinora/io/animation.h"

#include <webp/encode.h>
#include <webp/mux.h>

#include <cmath>
#include <cstdint>
#include <iomanip>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/io/image_codecs.h"

namespace kinora::io {
namespace {

struct EncoderDeleter {
  void operator()(WebPAnimEncoder* encoder) const { WebPAnimEncoderDelete(encoder); }
};
using Encoder = std::unique_ptr<WebPAnimEncoder, EncoderDeleter>;

struct Picture {
  Picture() { is_ready = WebPPictureInit(&value) != 0; }
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  ~Picture() { WebPPictureFree(&value); }

  WebPPicture value{};
  bool is_ready = false;
};

struct File {
  File() { WebPDataInit(&value); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { WebPDataClear(&value); }

  WebPData value{};
};

void check(bool done, const std::string& what, const Encoder& encoder) {
  KINORA_CHECK(done, kIo, "[animation] could not ", what, "; libwebp says: ",
               encoder == nullptr ? "nothing" : WebPAnimEncoderGetError(encoder.get()));
}

}  // namespace

std::vector<std::byte> encode_webp(std::span<const Image> frames, double fps) {
  check_clip("WebP", frames, {.max_side = WEBP_MAX_DIMENSION, .fps = fps, .max_fps = 1000.0});
  const auto height = static_cast<int>(frames.front().height);
  const auto width = static_cast<int>(frames.front().width);
  WebPAnimEncoderOptions options;
  WebPConfig config;
  const bool is_ready = WebPAnimEncoderOptionsInit(&options) != 0 && WebPConfigInit(&config) != 0;
  KINORA_CHECK(is_ready, kIo, "[animation] libwebp is not the version that its header says");
  config.lossless = 1;
  const Encoder encoder(WebPAnimEncoderNew(width, height, &options));
  check(encoder != nullptr, "start", encoder);
  const auto milliseconds = [fps](size_t frame) {
    return static_cast<int>(std::lround(1000.0 * static_cast<double>(frame) / fps));
  };
  for (size_t i = 0; i < frames.size(); ++i) {
    Picture picture;
    picture.value.use_argb = 1;
    picture.value.width = width;
    picture.value.height = height;
    const bool is_taken =
        picture.is_ready &&
        WebPPictureImportRGB(&picture.value, frames[i].pixels.data(), width * 3) != 0 &&
        WebPAnimEncoderAdd(encoder.get(), &picture.value, milliseconds(i), &config) != 0;
    check(is_taken, "add frame " + std::to_string(i), encoder);
  }
  const bool is_ended =
      WebPAnimEncoderAdd(encoder.get(), nullptr, milliseconds(frames.size()), nullptr) != 0;
  check(is_ended, "end the animation", encoder);
  File file;
  check(WebPAnimEncoderAssemble(encoder.get(), &file.value) != 0, "assemble the file", encoder);
  const auto* bytes = reinterpret_cast<const std::byte*>(file.value.bytes);
  return {bytes, bytes + file.value.size};
}

void write_webp(const std::filesystem::path& path, std::span<const Image> frames, double fps) {
  write_file_atomic(path, encode_webp(frames, fps));
}

void write_frames(const std::filesystem::path& folder, std::span<const Image> frames) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  KINORA_CHECK(!error, kIo, "[animation] could not make the folder ", folder.string(), ": ",
               error.message());
  for (size_t i = 0; i < frames.size(); ++i) {
    std::ostringstream name;
    name << "frame_" << std::setw(4) << std::setfill('0') << i << ".png";
    write_png(folder / name.str(), frames[i]);
  }
}

}  // namespace kinora::io
