#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kinora/io/video.h"

/// Clips whose frames say their numbers: see tools/make_video_fixtures.py.
namespace kinora::io::test {

#define SKIP_WITHOUT_VIDEO()                      \
  if (const auto reason = why_no_video()) {       \
    GTEST_SKIP() << "no video here: " << *reason; \
  }

inline const uint8_t* pixel(const Image& image, int64_t x, int64_t y) {
  return image.pixels.data() + (y * image.width + x) * 3;
}

// The number on the frame whose columns begin at `left`.
inline int64_t number_on(const Image& strip, int64_t left, int64_t width) {
  int64_t number = 0;
  for (int64_t digit = 0; digit < 6; ++digit) {
    const uint8_t* green = pixel(strip, left + (2 * digit + 1) * width / 12, strip.height / 4) + 1;
    number = 2 * number + (*green > 128 ? 1 : 0);
  }
  return number;
}

inline std::vector<int64_t> numbers_on(VideoFile& file, int64_t first, int64_t count,
                                       int64_t stride) {
  Image strip;
  file.read_frames(first, count, stride, strip);
  const int64_t width = file.info().width;
  EXPECT_EQ(strip.height, file.info().height);
  EXPECT_EQ(strip.width, width * count);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(number_on(strip, i * width, width));
  }
  return numbers;
}

inline std::vector<int64_t> count_up(int64_t first, int64_t count, int64_t stride = 1) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(first + i * stride);
  }
  return numbers;
}

// Means of a square of pixels, RGB.
inline std::array<int64_t, 3> colour_at(const Image& image, int64_t x, int64_t y) {
  std::array<int64_t, 3> sums = {};
  for (int64_t i = 0; i < 16; ++i) {
    for (size_t c = 0; c < 3; ++c) {
      sums[c] += pixel(image, x - 2 + i % 4, y - 2 + i / 4)[c];
    }
  }
  for (int64_t& sum : sums) {
    sum /= 16;
  }
  return sums;
}

inline void expect_colour(const std::array<int64_t, 3>& got, const std::array<int64_t, 3>& wanted) {
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(static_cast<double>(got[c]), static_cast<double>(wanted[c]), 16.0) << c;
  }
}

}  // namespace kinora::io::test
