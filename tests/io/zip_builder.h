#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kinora/io/zip.h"

/// Writes small zip archives, sound or not, for tests.
namespace kinora::io::testing {

enum class ZipParts { k32, k64 };

/// Replaces `size` bytes at `offset` by the little-endian `value`.
inline void put_le(std::string* text, size_t offset, size_t size, uint64_t value) {
  for (size_t i = 0; i < size; ++i) {
    text->at(offset + i) = static_cast<char>(value >> (8 * i) & 0xff);
  }
}

inline std::string le(size_t size, uint64_t value) {
  std::string text(size, '\0');
  put_le(&text, 0, size, value);
  return text;
}

/// An archive of stored entries (name, content). With k64 all sizes and offsets are in 64-bit
/// records.
inline std::string make_zip(const std::vector<std::pair<std::string, std::string>>& entries,
                            ZipParts parts = ZipParts::k32) {
  const bool wide = parts == ZipParts::k64;
  std::string body;
  std::string directory;
  for (const auto& [name, content] : entries) {
    const std::string sum = le(4, crc32(std::as_bytes(std::span(content.data(), content.size()))));
    const std::string size = le(4, wide ? 0xffffffff : content.size());
    const std::string extra = wide ? le(2, 1) + le(2, 24) + le(8, content.size()) +
                                         le(8, content.size()) + le(8, body.size())
                                   : "";
    directory += "PK\x01\x02" + le(2, 45) + le(2, 45) + le(2, 0) + le(2, 0) + le(4, 0) + sum +
                 size + size + le(2, name.size()) + le(2, extra.size()) + le(2, 0) + le(2, 0) +
                 le(2, 0) + le(4, 0) + le(4, wide ? 0xffffffff : body.size()) + name + extra;
    body += "PK\x03\x04" + le(2, 45) + le(2, 0) + le(2, 0) + le(4, 0) + sum + size + size +
            le(2, name.size()) + le(2, 0) + name + content;
  }
  std::string end;
  if (wide) {
    end = "PK\x06\x06" + le(8, 44) + le(2, 45) + le(2, 45) + le(4, 0) + le(4, 0) +
          le(8, entries.size()) + le(8, entries.size()) + le(8, directory.size()) +
          le(8, body.size()) + "PK\x06\x07" + le(4, 0) + le(8, body.size() + directory.size()) +
          le(4, 1);
  }
  return body + directory + end + "PK\x05\x06" + le(2, 0) + le(2, 0) +
         le(2, wide ? 0xffff : entries.size()) + le(2, wide ? 0xffff : entries.size()) +
         le(4, wide ? 0xffffffff : directory.size()) + le(4, wide ? 0xffffffff : body.size()) +
         le(2, 0);
}

}  // namespace kinora::io::testing
