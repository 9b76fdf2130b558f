#pragma once

#include <filesystem>
#include <optional>
#include <utility>

namespace kinora::io {

/// A file that one process holds at a time: until it lets go, or ends, however it ends.
class FileLock {
 public:
  /// Creates the file if it is missing; nothing if another process (or another FileLock of this
  /// one) holds it. kIo for a file that cannot be created or locked.
  [[nodiscard]] static std::optional<FileLock> take(const std::filesystem::path& file);

  /// Whether another process holds it now. Never creates the file; holds it itself for a moment.
  [[nodiscard]] static bool is_held(const std::filesystem::path& file);

  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

}  // namespace kinora::io
