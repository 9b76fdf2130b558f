#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace kinora::io {

/// A file that only grows, written without a buffer: what `append` has written survives the end of
/// this process, however it ends. Not safe to use from two threads at once.
class AppendFile {
 public:
  enum class Create {
    kIfMissing,  ///< an existing file is continued
    kNew,        ///< an existing file (or symbolic link) is an error
  };

  /// Errors (kIo): `path` cannot be opened for writing, or is a pipe or a device.
  AppendFile(std::filesystem::path path, Create create);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  /// Error (kIo): the system refuses, as when the disk is full; then nothing of `bytes` is there.
  void append(std::string_view bytes);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void take_back(size_t count) const;

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace kinora::io
