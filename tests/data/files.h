#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kinora/data/caption_tokens.h"
#include "kinora/io/image.h"

/// Files that the tests of this folder make.
namespace kinora::data {

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Writes a file inside, with the folders above it.
  std::filesystem::path write(const std::string& name, std::span<const std::byte> bytes) const;
  std::filesystem::path write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

/// An image filled with one grey.
[[nodiscard]] io::Image grey_image(uint8_t value, int64_t height = 8, int64_t width = 8);
[[nodiscard]] std::vector<std::byte> grey_png(uint8_t value, int64_t height = 8, int64_t width = 8);

/// The content of a fixture in tests/data/data.
[[nodiscard]] std::vector<std::byte> fixture(const std::string& name);

/// The tokenizer that is shipped, with room for so many tokens.
[[nodiscard]] CaptionTokens shipped_tokens(int64_t max_length);

/// An archive as POSIX.1-1988 describes it (ustar), of names and contents.
[[nodiscard]] std::vector<std::byte> tar(
    const std::vector<std::pair<std::string, std::vector<std::byte>>>& files);

/// The message of the Error that `call` throws; empty if it throws none.
template <typename Call>
[[nodiscard]] std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace kinora::data
