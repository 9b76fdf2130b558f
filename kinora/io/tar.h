#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kinora/io/file.h"

namespace kinora::io {

/// A regular file inside a tar archive.
struct TarEntry {
  std::string name;    ///< as stored, less leading "./"; never a path of this machine
  int64_t offset = 0;  ///< of its first byte in the archive
  int64_t size = 0;    ///< bytes
};

/// Reads the files inside a tar archive in place; nothing is ever unpacked. Understands POSIX
/// ustar, GNU (long names, large sizes), pax (path and size) and old V7 archives. Reading is
/// thread-safe.
class TarFile {
 public:
  /// Maps `path` and lists its regular files in the order of the archive; a name that was added
  /// twice is listed twice. Links, folders and devices are passed over. Errors (kIo): not a tar
  /// archive, a compressed one, a damaged or truncated one, sparse or multi-volume members.
  [[nodiscard]] static TarFile open(const std::filesystem::path& path);

  [[nodiscard]] const std::vector<TarEntry>& entries() const { return entries_; }

  /// The content of `entry`, one of entries(); valid as long as this object.
  [[nodiscard]] std::span<const std::byte> bytes(const TarEntry& entry) const {
    return file_.bytes().subspan(static_cast<size_t>(entry.offset),
                                 static_cast<size_t>(entry.size));
  }

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  explicit TarFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<TarEntry> entries_;
};

}  // namespace kinora::io
