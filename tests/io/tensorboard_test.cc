#include "kinora/io/tensorboard.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kinora/io/crc32c.h"
#include "kinora/io/file.h"
#include "tests/io/io_testing.h"
#include "tests/places.h"

namespace kinora::io {
namespace tensorboard_test {

using test::error_message;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Image small_image() {
  Image image{.height = 2, .width = 3, .channels = 3, .pixels = {}};
  image.pixels.assign(18, 120);
  return image;
}

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) {
    bytes += static_cast<char>(value);
  }
  return bytes;
}

template <typename T>
T little_endian(std::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i));
  }
  return value;
}

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8U;
  return (rotated >> 17) | (rotated << 15);
}

// The events of a file, after a check of its framing.
std::vector<std::string> records(const std::filesystem::path& path) {
  const std::string text = read_text(path, 1 << 20);
  std::string_view rest = text;
  std::vector<std::string> events;
  while (!rest.empty()) {
    const auto length = little_endian<uint64_t>(rest);
    EXPECT_LE(length + 16, rest.size());
    EXPECT_EQ(unmask(little_endian<uint32_t>(rest.substr(8))), crc32c(rest.substr(0, 8)));
    events.emplace_back(rest.substr(12, length));
    EXPECT_EQ(unmask(little_endian<uint32_t>(rest.substr(12 + length))), crc32c(events.back()));
    rest.remove_prefix(length + 16);
  }
  return events;
}

// RFC 3720, appendix B.4; the last is the check value of the catalogue of CRC algorithms.
TEST(Crc32cTest, KnownAnswers) {
  std::string up;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(up), 0x46dd794eU);
  EXPECT_EQ(crc32c(std::string(up.rbegin(), up.rend())), 0x113fdb5cU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

TEST(EventWriterTest, WritesTheBytesOfTheFormat) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path(), [] { return 1.5; });
  writer.add_scalar("loss", 300, 0.25);
  writer.purge_from(7);
  writer.flush();
  // By hand from the .proto files: tags, lengths and IEEE numbers.
  const std::string time = "\x09" + bytes_of({0, 0, 0, 0, 0, 0, 0xf8, 0x3f});
  EXPECT_THAT(records(writer.path()),
              ::testing::ElementsAre(time + "\x1a\x0d" + "brain.Event:2",
                                     time + bytes_of({0x10, 0xac, 0x02}) +
                                         bytes_of({0x2a, 13, 0x0a, 11, 0x0a, 4}) + "loss" +
                                         bytes_of({0x15, 0, 0, 0x80, 0x3e}),
                                     time + bytes_of({0x10, 7}) + bytes_of({0x3a, 2, 0x08, 1})));
  // The length of the first record and its checksum as TensorFlow's writers have them.
  EXPECT_EQ(read_text(writer.path(), 1 << 20).substr(0, 12),
            bytes_of({0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22}));
}

TEST(EventWriterTest, HoldsAnImageAsPng) {
  const test::TemporaryFolder folder;
  EventWriter writer(folder.path());
  writer.add_image("samples", 1, small_image());
  writer.flush();
  const std::vector<std::string> events = records(writer.path());
  ASSERT_EQ(events.size(), 2U);
  const size_t png = events[1].find("\x89PNG");
  ASSERT_NE(png, std::string::npos);
  const Image back = decode_image(std::as_bytes(std::span(events[1]).subspan(png)), "event");
  EXPECT_EQ(back.pixels, small_image().pixels);
}

TEST(EventWriterTest, FilesOfAFolderSortInTheOrderOfTheirMaking) {
  const test::TemporaryFolder folder;
  const auto clock = [] { return 1700000000.25; };
  const EventWriter first(folder.path(), clock);
  const EventWriter second(folder.path(), clock);
  const EventWriter third(folder.path(), [] { return 5.0; });
  EXPECT_THAT(first.path().filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.1700000000\\..+\\.[0-9]+"));
  EXPECT_LT(first.path(), second.path());
  EXPECT_LT(second.path(), third.path());
}

TEST(EventWriterTest, KeepsEventsBackUntilFlushedOrDestroyed) {
  const test::TemporaryFolder folder;
  std::filesystem::path path;
  {
    EventWriter writer(folder.path());
    path = writer.path();
    writer.add_scalar("a", 1, 2.0);
    EXPECT_EQ(records(path).size(), 1U);
    writer.flush();
    EXPECT_EQ(records(path).size(), 2U);
    writer.add_scalar("a", 2, 2.0);
  }
  EXPECT_EQ(records(path).size(), 3U);
}

TEST(EventWriterTest, AMissingFolderIsNamed) {
  EXPECT_THAT(error_message(ErrorKind::kIo, [] { EventWriter("/nonexistent"); }),
              HasSubstr("/nonexistent/events.out.tfevents"));
}

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    return output;
  }
  std::array<char, 4096> buffer;
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), count);
  }
  return ::pclose(pipe) == 0 ? output : "";
}

TEST(EventWriterTest, TheStockTensorBoardReadsIt) {
  const char* chosen = std::getenv("KINORA_PYTHON");
  const std::string python =
      "'" + (chosen != nullptr ? chosen : source_path(".venv/bin/python").string()) + "' ";
  if (output_of(python + "-c 'import tensorboard; print(1)' 2>/dev/null").empty()) {
    GTEST_SKIP() << "needs Python with the package tensorboard (variable KINORA_PYTHON)";
  }
  const test::TemporaryFolder folder;
  {
    EventWriter writer(folder.path());
    for (int64_t step = 1; step <= 5; ++step) {
      writer.add_scalar("loss", step, 1.0 / static_cast<double>(step));
    }
    writer.add_image("samples", 2, small_image());
    writer.add_image("samples", 4, small_image());
  }
  {
    EventWriter writer(folder.path());  // resumed from the checkpoint of step 3
    writer.purge_from(4);
    writer.add_scalar("loss", 4, 10.0);
  }
  const std::string output = output_of(python + source_path("tools/read_events.py").string() +
                                       " '" + folder.path().string() + "'");
  ASSERT_FALSE(output.empty());
  const auto read = nlohmann::json::parse(output);
  const auto third = static_cast<double>(1.0F / 3.0F);
  EXPECT_EQ(
      read["scalars"]["loss"],
      nlohmann::json::parse("[[1, 1.0], [2, 0.5], [3, 0], [4, 10.0]]")
          .patch(nlohmann::json::array({{{"op", "replace"}, {"path", "/2/1"}, {"value", third}}})));
  const size_t png_size = encode_png(small_image()).size();
  EXPECT_EQ(read["images"]["samples"], nlohmann::json::array({{2, 3, 2, png_size}}));
}

}  // namespace tensorboard_test
}  // namespace kinora::io
