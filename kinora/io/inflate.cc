#include "kinora/io/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "kinora/core/error.h"

namespace kinora::io {
namespace {

// A match of 258 bytes takes at least 2 bits: one byte never becomes more.
constexpr uint64_t kMaxRatio = 1032;
constexpr int kRawStream = -MAX_WBITS;  // no header, the largest window

/// zlib's state, which must be freed.
class Stream {
 public:
  Stream() { ready_ = inflateInit2(&state_, kRawStream) == Z_OK; }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (ready_) {
      inflateEnd(&state_);
    }
  }

  [[nodiscard]] bool is_ready() const { return ready_; }
  z_stream& operator*() { return state_; }

 private:
  z_stream state_ = {};
  bool ready_ = false;
};

/// As many of `size` bytes as one call of zlib takes.
uInt piece(size_t size) {
  return static_cast<uInt>(std::min<size_t>(size, std::numeric_limits<uInt>::max()));
}

}  // namespace

std::vector<std::byte> inflate(std::span<const std::byte> packed, uint64_t size,
                               const std::string& name) {
  KINORA_CHECK(size <= kMaxRatio * packed.size(), kIo, "[inflate] ", name, " must become ", size,
               " bytes, but its ", packed.size(), " cannot hold as much");
  std::vector<std::byte> content(size);
  Stream stream;
  KINORA_CHECK(stream.is_ready(), kIo, "[inflate] no memory for ", name);
  size_t read = 0;
  size_t written = 0;
  int result = Z_OK;
  std::byte behind{};  // where a stream that is too long shows itself
  while (result == Z_OK) {
    z_stream& state = *stream;
    const bool is_full = written == content.size();
    // zlib reads through a pointer that is not const in older versions.
    state.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + read));
    state.avail_in = piece(packed.size() - read);
    state.next_out = reinterpret_cast<Bytef*>(is_full ? &behind : content.data() + written);
    state.avail_out = is_full ? 1 : piece(content.size() - written);
    const uInt given_in = state.avail_in;
    const uInt given_out = state.avail_out;
    result = ::inflate(&state, Z_NO_FLUSH);
    read += given_in - state.avail_in;
    KINORA_CHECK(!is_full || state.avail_out == given_out, kIo, "[inflate] ", name, " must become ",
                 size, " bytes, got more");
    written += given_out - state.avail_out;
  }
  KINORA_CHECK(result == Z_STREAM_END && written == content.size() && read == packed.size(), kIo,
               "[inflate] ", name, " must be a whole deflate stream of ", size, " bytes, got ",
               written, " before its end or damage");
  return content;
}

}  // namespace kinora::io
