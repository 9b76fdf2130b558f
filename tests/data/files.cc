#include "tests/data/files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>

#include <unistd.h>

#include "kinora/core/rounding.h"
#include "kinora/io/file.h"
#include "tests/places.h"

namespace kinora::data {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> next{0};
  path_ = fs::temp_directory_path() /
          ("kinora_data_test_" + std::to_string(::getpid()) + "_" + std::to_string(next++));
  fs::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TemporaryFolder::write(const std::string& name, std::span<const std::byte> bytes) const {
  fs::path path = path_ / name;
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return path;
}

fs::path TemporaryFolder::write(const std::string& name, const std::string& text) const {
  return write(name, std::as_bytes(std::span(text)));
}

io::Image grey_image(uint8_t value, int64_t height, int64_t width) {
  return {height, width, 3, std::vector<uint8_t>(static_cast<size_t>(height * width * 3), value)};
}

std::vector<std::byte> grey_png(uint8_t value, int64_t height, int64_t width) {
  return io::encode_png(grey_image(value, height, width));
}

std::vector<std::byte> fixture(const std::string& name) {
  return io::read_file(source_path("tests/data/data") / name, 1 << 20);
}

CaptionTokens shipped_tokens(int64_t max_length) {
  return {.tokenizer = std::make_shared<const tokenizers::Tokenizer>(
              tokenizers::Tokenizer::load(source_path("configs/captions/spiece.model"))),
          .max_length = max_length};
}

std::vector<std::byte> tar(
    const std::vector<std::pair<std::string, std::vector<std::byte>>>& files) {
  constexpr size_t kBlock = 512;
  std::vector<std::byte> archive;
  for (const auto& [name, bytes] : files) {
    std::array<char, kBlock> header{};
    const auto put = [&header](size_t offset, std::string_view text) {
      std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(offset));
    };
    std::array<char, 16> octal{};
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    std::snprintf(octal.data(), octal.size(), "%011zo", bytes.size());
    put(124, octal.data());
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, std::string_view("ustar\00000", 8));
    unsigned sum = 0;
    for (const char c : header) {
      sum += static_cast<unsigned char>(c);
    }
    std::snprintf(octal.data(), octal.size(), "%06o", sum);
    put(148, std::string_view(octal.data(), 7));
    const auto header_bytes = std::as_bytes(std::span(header));
    archive.insert(archive.end(), header_bytes.begin(), header_bytes.end());
    archive.insert(archive.end(), bytes.begin(), bytes.end());
    archive.resize(round_up(archive.size(), kBlock));
  }
  archive.resize(archive.size() + 2 * kBlock);
  return archive;
}

}  // namespace kinora::data
