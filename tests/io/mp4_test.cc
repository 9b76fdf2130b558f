// MP4 files that are written, read back.
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/philox.h"
#include "kinora/core/rounding.h"
#include "kinora/io/video.h"
#include "tests/io/io_testing.h"
#include "tests/io/video_testing.h"

namespace kinora::io {
namespace mp4_test {

using test::colour_at;
using test::count_up;
using test::error_message;
using test::expect_colour;
using test::numbers_on;
using ::testing::HasSubstr;

Image draw(int64_t number, int64_t height, int64_t width) {
  Image image;
  set_size(image, height, width);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      uint8_t* rgb = image.pixels.data() + (y * width + x) * 3;
      const bool is_white = (number >> (5 - x * 6 / width) & 1) != 0;
      const std::array<uint8_t, 3> lower = {static_cast<uint8_t>(x < width / 2 ? 230 : 20), 20,
                                            static_cast<uint8_t>(x < width / 2 ? 20 : 230)};
      for (size_t c = 0; c < 3; ++c) {
        rgb[c] = y < height / 2 ? (is_white ? 235 : 20) : lower[c];
      }
    }
  }
  return image;
}

std::vector<Image> draw_all(int64_t count, int64_t height, int64_t width) {
  std::vector<Image> frames;
  for (int64_t i = 0; i < count; ++i) {
    frames.push_back(draw(i, height, width));
  }
  return frames;
}

// Skips where FFmpeg has no encoder.
#define SKIP_WITHOUT_H264()                                      \
  SKIP_WITHOUT_VIDEO();                                          \
  try {                                                          \
    (void)encode_mp4(draw_all(1, 16, 16));                       \
  } catch (const Error& error) {                                 \
    ASSERT_THAT(error.what(), HasSubstr("neither libx264 nor")); \
    GTEST_SKIP() << error.what();                                \
  }

TEST(Mp4Test, FramesComeBackInOrderWithTheirColours) {
  SKIP_WITHOUT_H264();
  for (const double fps : {8.0, 29.97, 24.0}) {
    const std::vector<std::byte> bytes =
        encode_mp4(draw_all(40, 96, 144), {.fps = fps, .quality = 70});
    VideoFile file = VideoFile::open(bytes, "written.mp4");
    EXPECT_EQ(file.info().declared_frames, 40);
    EXPECT_EQ(file.info().codec, "h264");
    EXPECT_NEAR(file.info().fps, fps, 0.01);
    EXPECT_EQ(file.num_frames(), 40);
    EXPECT_EQ(numbers_on(file, 0, 40, 1), count_up(0, 40));
    EXPECT_EQ(numbers_on(file, 3, 5, 7), count_up(3, 5, 7));
    Image frame;
    file.read_frames(20, 1, 1, frame);
    expect_colour(colour_at(frame, 36, 72), {230, 20, 20});
    expect_colour(colour_at(frame, 108, 72), {20, 20, 230});
    // The index lies in front.
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_LT(text.find("moov"), text.find("mdat"));
  }
}

TEST(Mp4Test, OddSidesArePadded) {
  SKIP_WITHOUT_H264();
  for (const auto& [height, width] : {std::pair{47, 73}, {1, 1}, {2, 31}}) {
    const std::vector<std::byte> bytes = encode_mp4(draw_all(2, height, width), {.quality = 90});
    VideoFile file = VideoFile::open(bytes, "odd.mp4");
    EXPECT_EQ(file.info().height, round_up(height, 2));
    EXPECT_EQ(file.info().width, round_up(width, 2));
    EXPECT_EQ(file.check_frames(), 2);
  }
}

TEST(Mp4Test, KeepsTexts) {
  SKIP_WITHOUT_H264();
  const std::vector<Image> frames = draw_all(3, 32, 32);
  const std::vector<PictureText> texts = {
      {.key = "parameters", .value = "a red circle, \xC3\xA9toile\nSteps: 4"},
      {.key = "kinora", .value = "{\"a\": \"" + std::string(100'000, 'x') + "\"}"}};
  const std::vector<std::byte> bytes = encode_mp4(frames, {.texts = texts});
  VideoFile file = VideoFile::open(bytes, "written.mp4");
  EXPECT_EQ(file.num_frames(), 3);
  EXPECT_THAT(file.texts(), ::testing::UnorderedElementsAreArray(texts));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_LT(text.find("moov"), text.find("mdat"));
  EXPECT_TRUE(VideoFile::open(encode_mp4(frames), "bare.mp4").texts().empty());
  const auto message = [&](const PictureText& wrong) {
    return error_message(ErrorKind::kShape, [&] { (void)encode_mp4(frames, {.texts = {wrong}}); });
  };
  EXPECT_THAT(message({.key = "other", .value = ""}), HasSubstr("got \"other\""));
  EXPECT_THAT(message({.key = "kinora", .value = std::string(kMostTextBytes + 1, 'x')}),
              HasSubstr("at most 1"));
}

TEST(Mp4Test, QualityCostsBytes) {
  SKIP_WITHOUT_H264();
  std::vector<Image> frames = draw_all(4, 64, 64);
  for (size_t i = 0; i < frames.size(); ++i) {
    for (size_t value = 0; value < frames[i].pixels.size(); ++value) {
      frames[i].pixels[value] =
          static_cast<uint8_t>(random_index({3, static_cast<uint32_t>(i)}, value, 256));
    }
  }
  const auto error_of = [&](int64_t quality, size_t& size) {
    const std::vector<std::byte> bytes = encode_mp4(frames, {.quality = quality});
    size = bytes.size();
    VideoFile file = VideoFile::open(bytes, "noise.mp4");
    Image frame;
    file.read_frames(2, 1, 1, frame);
    double sum = 0.0;
    for (size_t value = 0; value < frame.pixels.size(); ++value) {
      sum += std::abs(static_cast<double>(frame.pixels[value]) - frames[2].pixels[value]);
    }
    return sum;
  };
  size_t small = 0;
  size_t large = 0;
  EXPECT_GT(error_of(20, small), error_of(90, large));
  EXPECT_LT(2 * small, large);
}

TEST(Mp4Test, RefusesWhatIsNoClip) {
  const std::vector<Image> frames = draw_all(2, 8, 8);
  const auto message = [](std::span<const Image> clip, const Mp4Options& options) {
    return error_message(ErrorKind::kShape, [&] { (void)encode_mp4(clip, options); });
  };
  EXPECT_THAT(message({}, {}), HasSubstr("got none"));
  EXPECT_THAT(message(frames, {.fps = 0.0}), HasSubstr("got 0"));
  EXPECT_THAT(message(frames, {.quality = 101}), HasSubstr("got 101"));
}

}  // namespace mp4_test
}  // namespace kinora::io
