#include "tests/apps/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>

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
