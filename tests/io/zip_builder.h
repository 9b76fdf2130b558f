#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kinora/io/zip.h"

/// Writes small zip archives, sound or not, for tests.
namespace kinora::io::test {

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
  const auto narrow = [&](size_t size, uint64_t value) { return le(size, wide ? ~0ULL : value); };
  std::string body;
  std::string directory;
  for (const auto& [name, content] : entries) {
    const std::string version = le(2, 45);
    const std::string sizes =
        le(4, crc32(std::as_bytes(std::span(content.data(), content.size())))) +
        narrow(4, content.size()) + narrow(4, content.size()) + le(2, name.size());
    std::string extra;
    if (wide) {
      extra = le(2, 1) + le(2, 24);
      for (const size_t value : {content.size(), content.size(), body.size()}) {
        extra += le(8, value);
      }
    }
    directory.append("PK\x01\x02").append(version).append(version).append(le(8, 0)).append(sizes);
    directory.append(le(2, extra.size()))
        .append(std::string(10, '\0'))
        .append(narrow(4, body.size()));
    directory.append(name).append(extra);
    body.append("PK\x03\x04").append(version).append(le(8, 0)).append(sizes).append(le(2, 0));
    body.append(name).append(content);
  }
  const size_t end = body.size() + directory.size();
  std::string archive = body + directory;
  if (wide) {
    archive.append("PK\x06\x06").append(le(8, 44)).append(le(2, 45)).append(le(2, 45));
    archive.append(le(8, 0)).append(le(8, entries.size())).append(le(8, entries.size()));
    archive.append(le(8, directory.size())).append(le(8, body.size()));
    archive.append("PK\x06\x07").append(le(4, 0)).append(le(8, end)).append(le(4, 1));
  }
  archive.append("PK\x05\x06").append(le(4, 0));
  archive.append(narrow(2, entries.size())).append(narrow(2, entries.size()));
  archive.append(narrow(4, directory.size())).append(narrow(4, body.size())).append(le(2, 0));
  return archive;
}

}  // namespace kinora::io::test
