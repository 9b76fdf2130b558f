#include "tests/apps/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>

#include "kinora/core/rounding.h"
#include "kinora/io/image.h"

namespace kinora::apps {

TemporaryFolder::TemporaryFolder() {
  std::string name = testing::TempDir() + "kinora-apps-XXXXXX";
  EXPECT_NE(::mkdtemp(name.data()), nullptr) << name;
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << "cannot read " << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string read_picture_bytes(const std::filesystem::path& path) {
  const std::string all = read_text(path);
  const auto number = [&all](size_t at, bool is_big) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) {
      value |= static_cast<uint32_t>(static_cast<uint8_t>(all[at + i]))
               << (8 * (is_big ? 3 - i : i));
    }
    return size_t{value};
  };
  const bool is_png = all.starts_with("\x89PNG");
  if (!is_png && !all.starts_with("RIFF")) {
    return all;
  }
  // Chunks: of a PNG length, name, data, checksum; of a WebP name, length, data up to an even byte.
  std::string rest;
  size_t place = is_png ? 8 : 12;
  while (place + 8 <= all.size()) {
    const std::string name = all.substr(place + (is_png ? 4 : 0), 4);
    const size_t length = number(place + (is_png ? 0 : 4), is_png);
    const size_t size = is_png ? length + 12 : 8 + round_up(length, 2);
    if (name != "tEXt" && name != "iTXt" && name != "XMP ") {
      rest += all.substr(place, size);
    }
    place += size;
  }
  return rest;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  EXPECT_TRUE(file.flush()) << "cannot write " << path;
}

void damage(const std::filesystem::path& path) {
  std::string text = read_text(path);
  ASSERT_FALSE(text.empty()) << path;
  text[text.size() / 2] = static_cast<char>(~text[text.size() / 2]);
  write_text(path, text);
}

void write_picture(const std::filesystem::path& path, int number, int height, int width) {
  io::Image image{.height = height, .width = width, .channels = 3, .pixels = {}};
  for (int i = 0; i < height * width; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(number * 37));
    image.pixels.push_back(static_cast<uint8_t>(number * 91 + i));
    image.pixels.push_back(static_cast<uint8_t>(number * 53));
  }
  io::write_png(path, image);
}

}  // namespace kinora::apps
