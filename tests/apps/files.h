#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kinora::apps {

/// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The bytes of a file; the test fails if it cannot be read.
[[nodiscard]] std::string read_text(const std::filesystem::path& path);
/// The same of a PNG or WebP without the texts beside its pixels, which say how it was drawn.
[[nodiscard]] std::string read_picture_bytes(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, std::string_view text);

/// Inverts one byte in the middle of a file.
void damage(const std::filesystem::path& path);

/// A PNG of one colour that depends on `number`.
void write_picture(const std::filesystem::path& path, int number, int height = 16, int width = 16);

}  // namespace kinora::apps
