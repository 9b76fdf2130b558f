// Animated GIF (CompuServe, "Graphics Interchange Format", version 89a).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>

#include "kinora/io/animation.h"
#include "kinora/io/file.h"
#include "kinora/io/image_codecs.h"
#include "kinora/io/palette.h"

namespace kinora::io {
namespace {

constexpr double kTicks = 100.0;  // a second

class Bytes {
 public:
  void put(std::string_view text) {
    for (const char c : text) {
      put_byte(static_cast<uint8_t>(c));
    }
  }
  void put_byte(int64_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void put_short(int64_t value) {
    put_byte(value & 0xff);
    put_byte(value >> 8);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// LZW with codes of 3 to 12 bits, in blocks of up to 255 bytes (appendix F).
class Lzw {
 public:
  Lzw(int pixel_bits, Bytes& out) : pixel_bits_(pixel_bits), out_(out) {
    out_.put_byte(pixel_bits_);
    clear();
  }

  void put(std::span<const uint8_t> pixels) {
    int prefix = pixels.front();
    for (const uint8_t pixel : pixels.subspan(1)) {
      int16_t& known = slot_of(prefix, pixel);
      if (known >= 0) {
        prefix = known;
        continue;
      }
      put_code(prefix);
      prefix = pixel;
      if (num_codes_ == kMaxCodes) {
        clear();
        continue;
      }
      known = static_cast<int16_t>(num_codes_++);
      // The reader is one code behind.
      if (num_codes_ > 1 << code_bits_ && code_bits_ < kMaxBits) {
        ++code_bits_;
      }
    }
    put_code(prefix);
    put_code((1 << pixel_bits_) + 1);  // end
    if (num_bits_ > 0) {
      put_block_byte();
    }
    flush();
    out_.put_byte(0);
  }

 private:
  static constexpr int kMaxBits = 12;
  static constexpr int kMaxCodes = 1 << kMaxBits;
  static constexpr size_t kNumSlots = size_t{1} << 14;

  struct Slot {
    int32_t key = -1;
    int16_t code = -1;
  };

  void clear() {
    const int clear_code = 1 << pixel_bits_;
    if (code_bits_ == 0) {
      code_bits_ = pixel_bits_ + 1;
    }
    put_code(clear_code);
    code_bits_ = pixel_bits_ + 1;
    num_codes_ = clear_code + 2;
    slots_.assign(kNumSlots, {});
  }

  /// The code of `prefix` with `pixel` behind it; below 0: none yet.
  int16_t& slot_of(int prefix, uint8_t pixel) {
    const int32_t key = prefix << 8 | pixel;
    size_t place = static_cast<uint32_t>(key) * 2654435761U >> 18;  // Knuth's multiplicative hash
    while (slots_[place].key >= 0 && slots_[place].key != key) {
      place = (place + 1) % kNumSlots;
    }
    slots_[place].key = key;
    return slots_[place].code;
  }

  void put_code(int code) {
    bits_ |= static_cast<uint32_t>(code) << num_bits_;
    num_bits_ += code_bits_;
    while (num_bits_ >= 8) {
      put_block_byte();
    }
  }

  void put_block_byte() {
    block_.push_back(static_cast<char>(bits_ & 0xff));
    bits_ >>= 8;
    num_bits_ = std::max(num_bits_ - 8, 0);
    if (block_.size() == 255) {
      flush();
    }
  }

  void flush() {
    if (!block_.empty()) {
      out_.put_byte(static_cast<int64_t>(block_.size()));
      out_.put(block_);
      block_.clear();
    }
  }

  int pixel_bits_;
  int code_bits_ = 0;
  int num_codes_ = 0;
  std::vector<Slot> slots_;
  uint32_t bits_ = 0;
  int num_bits_ = 0;
  std::string block_;
  Bytes& out_;
};

}  // namespace

std::vector<std::byte> encode_gif(std::span<const Image> frames, double fps) {
  check_clip("GIF", frames, {.max_side = 65535, .fps = fps, .max_fps = 50.0});
  const int64_t width = frames.front().width;
  const int64_t height = frames.front().height;
  Palette palette(frames);
  // Tables hold 4 to 256 colours here, a power of two.
  const int pixel_bits =
      std::max(2, static_cast<int>(std::bit_width(palette.colours().size() - 1)));
  Bytes file;
  file.put("GIF89a");
  file.put_short(width);
  file.put_short(height);
  file.put_byte(0xf0 | (pixel_bits - 1));  // a table of colours for all frames
  file.put_short(0);                       // background, shape of pixels
  for (size_t i = 0; i < size_t{1} << pixel_bits; ++i) {
    const Colour colour = i < palette.colours().size() ? palette.colours()[i] : Colour{};
    for (const uint8_t value : colour) {
      file.put_byte(value);
    }
  }
  file.put("!\xff\x0bNETSCAPE2.0");
  file.put_byte(3);
  file.put_byte(1);
  file.put_short(0);  // again and again
  file.put_byte(0);
  int64_t begin = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i + 1 < frames.size() && frames[i + 1].pixels == frames[i].pixels) {
      continue;  // one longer frame
    }
    const int64_t end = std::llround(kTicks * static_cast<double>(i + 1) / fps);
    file.put_short(0xf921);  // graphic control
    file.put_byte(4);
    file.put_byte(0);
    file.put_short(std::min<int64_t>(end - begin, 65535));
    file.put_short(0);
    begin = end;
    file.put(",");
    file.put_short(0);
    file.put_short(0);
    file.put_short(width);
    file.put_short(height);
    file.put_byte(0);
    Lzw(pixel_bits, file).put(palette.apply(frames[i]));
  }
  file.put(";");
  return file.take();
}

void write_gif(const std::filesystem::path& path, std::span<const Image> frames, double fps) {
  write_file_atomic(path, encode_gif(frames, fps));
}

}  // namespace kinora::io
