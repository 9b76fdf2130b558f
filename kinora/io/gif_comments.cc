#include "kinora/io/gif_comments.h"

#include <algorithm>
#include <cstdint>

#include "kinora/core/error.h"

namespace kinora::io {
namespace {

constexpr size_t kScreen = 13;  // signature and logical screen descriptor
constexpr size_t kScreenFlags = 10;
constexpr size_t kFrameBytes = 10;  // image descriptor
constexpr size_t kFrameFlags = 9;
constexpr size_t kMostInBlock = 255;

// What a block begins with.
constexpr char kExtension = '\x21';
constexpr char kFrame = '\x2c';
constexpr char kTrailer = '\x3b';
// What an extension is.
constexpr char kGraphicControl = '\xf9';
constexpr char kComment = '\xfe';

/// Goes through the blocks of a file.
class Blocks {
 public:
  Blocks(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {
    at_ = kScreen + table_bytes(byte(kScreenFlags));
  }

  [[nodiscard]] size_t at() const { return at_; }
  [[nodiscard]] char kind() const { return byte(at_); }
  [[nodiscard]] char label() const { return byte(at_ + 1); }

  /// Goes to the next block, and adds the data of this one, an extension or a frame, to `data`,
  /// which may be null.
  void next(std::string* data) {
    size_t at = at_ + 2;
    if (kind() == kFrame) {
      at = at_ + kFrameBytes + table_bytes(byte(at_ + kFrameFlags)) + 1;
    } else {
      KINORA_CHECK(kind() == kExtension, kIo, "[gif] ", name_,
                   " must have an extension, a frame or its end at byte ", at_, ", got byte ",
                   int{static_cast<uint8_t>(kind())});
    }
    for (size_t size = length(at); size > 0; size = length(at)) {
      (void)byte(at + size);  // it is there to its end
      if (data != nullptr) {
        *data += bytes_.substr(at + 1, size);
      }
      at += size + 1;
    }
    at_ = at + 1;
  }

 private:
  [[nodiscard]] char byte(size_t place) const {
    KINORA_CHECK(place < bytes_.size(), kIo, "[gif] ", name_, " ends within a block");
    return bytes_[place];
  }
  [[nodiscard]] size_t length(size_t place) const { return static_cast<uint8_t>(byte(place)); }

  /// Of the table of colours behind flags.
  static size_t table_bytes(char flags) {
    const auto bits = static_cast<uint8_t>(flags);
    return (bits & 0x80U) == 0 ? 0 : size_t{3} << ((bits & 7U) + 1);
  }

  std::string_view bytes_;
  const std::string& name_;
  size_t at_ = 0;
};

void add_comment(std::string& out, std::string_view text) {
  out += {kExtension, kComment};
  while (!text.empty()) {
    const size_t size = std::min(text.size(), kMostInBlock);
    out += static_cast<char>(size);
    out += text.substr(0, size);
    text.remove_prefix(size);
  }
  out += '\0';
}

}  // namespace

bool is_gif(std::string_view bytes) {
  return bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a");
}

std::string with_gif_comments(std::string_view gif, std::span<const std::string> comments) {
  const std::string name = "what comments go into";
  // Behind what says how often it is played, which some readers want first.
  Blocks blocks(gif, name);
  while (blocks.kind() == kExtension && blocks.label() != kGraphicControl) {
    blocks.next(nullptr);
  }
  std::string out(gif.substr(0, blocks.at()));
  for (const std::string& comment : comments) {
    add_comment(out, comment);
  }
  return out + std::string(gif.substr(blocks.at()));
}

std::vector<std::string> gif_comments(std::string_view gif, const std::string& name) {
  std::vector<std::string> comments;
  for (Blocks blocks(gif, name); blocks.kind() != kTrailer;) {
    const bool is_comment = blocks.kind() == kExtension && blocks.label() == kComment;
    blocks.next(is_comment ? &comments.emplace_back() : nullptr);
  }
  return comments;
}

}  // namespace kinora::io
