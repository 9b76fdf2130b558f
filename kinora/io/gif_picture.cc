// The first frame of a GIF, by giflib.
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/io/image_codecs.h"

namespace kinora::io {
namespace {

int read_bytes(GifFileType* gif, GifByteType* out, int count) {
  auto& rest = *static_cast<std::span<const std::byte>*>(gif->UserData);
  const size_t size = std::min(rest.size(), static_cast<size_t>(std::max(count, 0)));
  std::memcpy(out, rest.data(), size);
  rest = rest.subspan(size);
  return static_cast<int>(size);
}

struct Close {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name) : rest_(bytes), name_(name) {
    int error = 0;
    gif_.reset(DGifOpen(&rest_, read_bytes, &error));
    if (gif_ == nullptr) {
      fail(error);
    }
    while (next_record() != IMAGE_DESC_RECORD_TYPE) {
      check(record_ == EXTENSION_RECORD_TYPE);
      read_extension();
    }
    check(DGifGetImageDesc(gif_.get()) == GIF_OK);
  }

  // Of the screen, and of the first frame where that leads beyond it.
  [[nodiscard]] ImageSize size() const {
    const GifImageDesc& frame = gif_->Image;
    return {std::max<int64_t>(gif_->SHeight, int64_t{frame.Top} + frame.Height),
            std::max<int64_t>(gif_->SWidth, int64_t{frame.Left} + frame.Width)};
  }

  // `image` has that size.
  void read_frame(Image& image) {
    const GifImageDesc& frame = gif_->Image;
    const ColorMapObject* colours = frame.ColorMap != nullptr ? frame.ColorMap : gif_->SColorMap;
    check(colours != nullptr && frame.Width > 0 && frame.Height > 0);
    if (frame.Width != image.width || frame.Height != image.height) {
      // What is around the frame is transparent, which is a colour once alpha is dropped.
      for (int64_t i = 0; i < image.height * image.width; ++i) {
        put(*colours, transparent_, image.pixels.data() + i * 3);
      }
    }
    // Rows of interlaced frames: every eighth, then those in the middle, and so on.
    struct Pass {
      int64_t first;
      int64_t step;
    };
    constexpr std::array<Pass, 4> kInterlaced = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
    constexpr std::array<Pass, 1> kPlain = {{{0, 1}}};
    row_.resize(static_cast<size_t>(frame.Width));
    for (const Pass& pass : frame.Interlace ? std::span<const Pass>(kInterlaced) : kPlain) {
      for (int64_t y = pass.first; y < frame.Height; y += pass.step) {
        check(DGifGetLine(gif_.get(), row_.data(), frame.Width) == GIF_OK);
        uint8_t* out = image.pixels.data() + ((frame.Top + y) * image.width + frame.Left) * 3;
        for (size_t x = 0; x < row_.size(); ++x) {
          put(*colours, row_[x], out + x * 3);
        }
      }
    }
  }

  // Further frames are not decoded, but must be there.
  void skip_rest() {
    while (next_record() != TERMINATE_RECORD_TYPE) {
      if (record_ == EXTENSION_RECORD_TYPE) {
        read_extension();
        continue;
      }
      check(DGifGetImageDesc(gif_.get()) == GIF_OK);
      int code_size = 0;
      GifByteType* block = nullptr;
      check(DGifGetCode(gif_.get(), &code_size, &block) == GIF_OK);
      while (block != nullptr) {
        check(DGifGetCodeNext(gif_.get(), &block) == GIF_OK);
      }
    }
  }

 private:
  GifRecordType next_record() {
    check(DGifGetRecordType(gif_.get(), &record_) == GIF_OK);
    return record_;
  }

  void read_extension() {
    int code = 0;
    GifByteType* block = nullptr;
    check(DGifGetExtension(gif_.get(), &code, &block) == GIF_OK);
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (code == GRAPHICS_EXT_FUNC_CODE &&
          DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK &&
          control.TransparentColor != NO_TRANSPARENT_COLOR) {
        transparent_ = control.TransparentColor;
      }
      check(DGifGetExtensionNext(gif_.get(), &block) == GIF_OK);
    }
  }

  void put(const ColorMapObject& colours, int place, uint8_t* out) const {
    check(place < colours.ColorCount);
    const GifColorType& colour = colours.Colors[place];
    out[0] = colour.Red;
    out[1] = colour.Green;
    out[2] = colour.Blue;
  }

  void check(bool is_right) const {
    if (!is_right) [[unlikely]] {
      fail(gif_->Error);
    }
  }

  [[noreturn]] void fail(int error) const {
    const char* text = GifErrorString(error);
    throw_error(ErrorKind::kIo, "[image] ", name_, " must be a whole, valid GIF",
                text != nullptr ? "; giflib says: " : ", got a damaged first frame",
                text != nullptr ? text : "");
  }

  std::span<const std::byte> rest_;
  const std::string& name_;
  std::unique_ptr<GifFileType, Close> gif_;
  GifRecordType record_ = UNDEFINED_RECORD_TYPE;
  int transparent_ = 0;
  std::vector<GifPixelType> row_;
};

}  // namespace

ImageSize gif_size(std::span<const std::byte> bytes, const std::string& name) {
  const ImageSize size = Reader(bytes, name).size();
  check_image_size("GIF", name, size);
  return size;
}

void decode_gif_into(std::span<const std::byte> bytes, const std::string& name, Image& image) {
  Reader reader(bytes, name);
  prepare_image("GIF", name, reader.size(), image);
  reader.read_frame(image);
  reader.skip_rest();
}

}  // namespace kinora::io
