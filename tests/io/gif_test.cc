// Animated GIF as its specification has it, read back by a reader of these tests and by FFmpeg.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/philox.h"
#include "kinora/core/rounding.h"
#include "kinora/io/animation.h"
#include "kinora/io/palette.h"
#include "kinora/io/video.h"
#include "tests/io/io_testing.h"

namespace kinora::io {
namespace gif_test {

using test::error_message;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Images of `num_colours` random colours.
std::vector<Image> noise(uint32_t count, int64_t height, int64_t width, int64_t num_colours) {
  std::vector<Image> frames(count);
  for (uint32_t i = 0; i < count; ++i) {
    set_size(frames[i], height, width);
    for (uint64_t pixel = 0; pixel < static_cast<uint64_t>(height * width); ++pixel) {
      const auto colour = static_cast<uint64_t>(random_index({7, i}, pixel, num_colours));
      for (uint64_t c = 0; c < 3; ++c) {
        frames[i].pixels[pixel * 3 + c] =
            static_cast<uint8_t>(random_index({8, 0}, 3 * colour + c, 256));
      }
    }
  }
  return frames;
}

// What a player makes of a file of whole frames.
class Player {
 public:
  explicit Player(const std::vector<std::byte>& file) {
    for (const std::byte byte : file) {
      bytes_.push_back(static_cast<uint8_t>(byte));
    }
    EXPECT_EQ(text(6), "GIF89a");
    width = number();
    height = number();
    const int flags = next();
    place_ += 2;
    EXPECT_EQ(flags & 0x80, 0x80);
    for (int i = 0; i < 2 << (flags & 7); ++i) {
      colours_.push_back({next(), next(), next()});
    }
    for (int block = next(); block != ';'; block = next()) {
      if (block == '!') {
        extension();
      } else {
        EXPECT_EQ(block, ',');
        EXPECT_EQ(number() + number(), 0);
        EXPECT_EQ(number(), width);
        EXPECT_EQ(number(), height);
        EXPECT_EQ(next(), 0);
        picture();
      }
    }
    EXPECT_EQ(place_, bytes_.size());
  }

  int64_t width = 0;
  int64_t height = 0;
  bool loops = false;
  std::vector<int> hundredths;
  std::vector<std::vector<uint8_t>> frames;

 private:
  uint8_t next() { return bytes_.at(place_++); }
  int number() {
    const int low = next();
    return low | next() << 8;
  }
  std::string text(size_t size) {
    std::string result;
    for (size_t i = 0; i < size; ++i) {
      result += static_cast<char>(next());
    }
    return result;
  }

  std::vector<uint8_t> blocks() {
    std::vector<uint8_t> all;
    for (size_t size = next(); size > 0; size = next()) {
      all.insert(all.end(), bytes_.begin() + static_cast<ptrdiff_t>(place_),
                 bytes_.begin() + static_cast<ptrdiff_t>(place_ + size));
      place_ += size;
    }
    return all;
  }

  void extension() {
    const int label = next();
    const std::vector<uint8_t> body = blocks();
    if (label == 0xf9) {
      hundredths.push_back(body.at(1) | body.at(2) << 8);
    } else {
      EXPECT_EQ(label, 0xff);
      EXPECT_EQ(std::string(body.begin(), body.begin() + 11), "NETSCAPE2.0");
      EXPECT_THAT(std::vector<uint8_t>(body.begin() + 11, body.end()), ElementsAre(1, 0, 0));
      loops = true;
    }
  }

  // Appendix F: codes are strings of positions; each code read adds the one before it with the
  // first position of its own.
  void picture() {
    const int bits = next();
    const std::vector<uint8_t> data = blocks();
    const int clear = 1 << bits;
    std::vector<std::vector<uint8_t>> strings;
    std::vector<uint8_t> pixels;
    std::vector<uint8_t> before;
    int size = bits + 1;
    for (size_t bit = 0;;) {
      int code = 0;
      for (int i = 0; i < size; ++i, ++bit) {
        code |= (data.at(bit / 8) >> (bit % 8) & 1) << i;
      }
      if (code == clear) {
        strings.assign(static_cast<size_t>(clear) + 2, {});
        for (int i = 0; i < clear; ++i) {
          strings[static_cast<size_t>(i)] = {static_cast<uint8_t>(i)};
        }
        size = bits + 1;
        before.clear();
        continue;
      }
      if (code == clear + 1) {
        EXPECT_EQ(ceil_div(bit, 8), data.size());
        break;
      }
      std::vector<uint8_t> string = before;
      if (static_cast<size_t>(code) < strings.size()) {
        string = strings[static_cast<size_t>(code)];
      } else {
        string.push_back(before.at(0));
      }
      pixels.insert(pixels.end(), string.begin(), string.end());
      if (!before.empty() && strings.size() < 4096) {
        before.push_back(string[0]);
        strings.push_back(before);
        size += strings.size() == size_t{1} << size && size < 12 ? 1 : 0;
      }
      before = string;
    }
    std::vector<uint8_t>& frame = frames.emplace_back();
    for (const uint8_t position : pixels) {
      const auto& colour = colours_.at(position);
      frame.insert(frame.end(), colour.begin(), colour.end());
    }
  }

  std::vector<uint8_t> bytes_;
  size_t place_ = 0;
  std::vector<std::array<uint8_t, 3>> colours_;
};

TEST(GifTest, FewColoursSurviveExactly) {
  // Sizes from one pixel to more codes than a table holds, several times.
  for (const auto& [height, width, colours] : {std::array<int64_t, 3>{1, 1, 1},
                                               {3, 5, 2},
                                               {9, 7, 4},
                                               {40, 33, 16},
                                               {90, 101, 130},
                                               {200, 150, 256},
                                               {300, 300, 3}}) {
    const std::vector<Image> frames = noise(3, height, width, colours);
    const Player played(encode_gif(frames, 10.0));
    EXPECT_EQ(played.height, height);
    EXPECT_EQ(played.width, width);
    EXPECT_TRUE(played.loops);
    ASSERT_EQ(played.frames.size(), height * width * colours == 1 ? 1U : 3U);
    for (size_t i = 0; i < played.frames.size(); ++i) {
      EXPECT_TRUE(played.frames[i] == frames[i].pixels) << i << " of " << height << " x " << width;
    }
  }
}

TEST(GifTest, TimesAreRoundedWithoutDriftAndEqualNeighboursJoined) {
  std::vector<Image> frames = noise(5, 8, 8, 4);
  EXPECT_THAT(Player(encode_gif(frames, 30.0)).hundredths, ElementsAre(3, 4, 3, 3, 4));
  frames[2] = frames[1];
  frames[4] = frames[3];
  EXPECT_THAT(Player(encode_gif(frames, 8.0)).hundredths, ElementsAre(13, 25, 25));
}

// A plane of many colours: every block of 8 x 8 keeps its mean, whatever became of its pixels.
TEST(GifTest, ManyColoursAreDithered) {
  std::vector<Image> frames(2);
  for (size_t i = 0; i < 2; ++i) {
    set_size(frames[i], 128, 128);
    for (int64_t pixel = 0; pixel < int64_t{128} * 128; ++pixel) {
      const auto x = static_cast<uint8_t>(pixel % 128);
      const auto y = static_cast<uint8_t>(pixel / 128);
      uint8_t* rgb = frames[i].pixels.data() + pixel * 3;
      rgb[0] = static_cast<uint8_t>(2 * x);
      rgb[1] = static_cast<uint8_t>(2 * y);
      rgb[2] = static_cast<uint8_t>(i == 0 ? x + y : 255 - x - y);
    }
  }
  EXPECT_EQ(Palette(frames).colours().size(), 256U);
  const Player played(encode_gif(frames, 8.0));
  double squares = 0.0;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t block = 0; block < size_t{16} * 16 * 3; ++block) {
      const size_t first = block / 48 * 8 * 128 * 3 + block / 3 % 16 * 24 + block % 3;
      double sum = 0.0;
      for (size_t pixel = 0; pixel < 64; ++pixel) {
        const size_t place = first + pixel / 8 * 128 * 3 + pixel % 8 * 3;
        const double error = static_cast<double>(played.frames[i][place]) - frames[i].pixels[place];
        sum += error;
        squares += error * error;
      }
      ASSERT_LT(std::abs(sum / 64.0), 12.0) << block;  // no colour lies in the very corners
    }
  }
  // Six levels of each channel would leave 216 colours 51 apart: an error of 51 / sqrt(12) = 15.
  EXPECT_LT(std::sqrt(squares / (2.0 * 128 * 128 * 3)), 15.0);
}

TEST(GifTest, FfmpegReadsTheSame) {
  if (const auto reason = why_no_video()) {
    GTEST_SKIP() << "no video here: " << *reason;
  }
  const std::vector<Image> frames = noise(6, 37, 50, 200);
  const std::vector<std::byte> bytes = encode_gif(frames, 12.5);
  VideoFile file = VideoFile::open(bytes, "noise.gif");
  EXPECT_EQ(file.num_frames(), 6);
  EXPECT_NEAR(file.info().fps, 12.5, 0.01);
  for (int64_t i = 0; i < 6; ++i) {
    Image frame;
    file.read_frames(i, 1, 1, frame);
    EXPECT_TRUE(frame.pixels == frames[static_cast<size_t>(i)].pixels) << i;
  }
}

TEST(GifTest, RefusesWhatIsNoClip) {
  const std::vector<Image> frames = noise(2, 4, 4, 2);
  const auto message = [](std::span<const Image> clip, double fps) {
    return error_message(ErrorKind::kShape, [&] { (void)encode_gif(clip, fps); });
  };
  EXPECT_THAT(message({}, 8.0), HasSubstr("got none"));
  EXPECT_THAT(message(frames, 60.0), HasSubstr("GIF must be above 0 and at most 50, got 60"));
}

}  // namespace gif_test
}  // namespace kinora::io
