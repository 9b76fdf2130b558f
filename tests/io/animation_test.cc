#include "kinora/io/animation.h"

#include <webp/demux.h>

#include <cstring>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/philox.h"
#include "kinora/io/file.h"
#include "kinora/io/image_grid.h"
#include "tests/io/io_testing.h"

namespace kinora::io {
namespace animation_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Frames of noise, which any loss would change.
std::vector<Image> noise_frames(uint32_t count, int64_t height, int64_t width) {
  std::vector<Image> frames;
  for (uint32_t i = 0; i < count; ++i) {
    Image frame{height, width, 3, std::vector<uint8_t>(static_cast<size_t>(height * width * 3))};
    for (size_t value = 0; value < frame.pixels.size(); ++value) {
      frame.pixels[value] = static_cast<uint8_t>(random_index({4, i}, value, 256));
    }
    frames.push_back(frame);
  }
  return frames;
}

// What libwebp's own reader sees.
struct Played {
  std::vector<std::vector<uint8_t>> frames;  // RGB
  std::vector<int> ends;                     // in milliseconds
  uint32_t loops = 1;
  uint32_t width = 0;
  uint32_t height = 0;
};

Played play(const std::vector<std::byte>& bytes) {
  const WebPData data{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(
      WebPAnimDecoderNew(&data, nullptr), &WebPAnimDecoderDelete);
  Played played;
  WebPAnimInfo info;
  if (decoder == nullptr || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0) {
    ADD_FAILURE() << "no animation";
    return played;
  }
  played.loops = info.loop_count;
  played.width = info.canvas_width;
  played.height = info.canvas_height;
  while (WebPAnimDecoderHasMoreFrames(decoder.get()) != 0) {
    uint8_t* rgba = nullptr;
    int end = 0;
    if (WebPAnimDecoderGetNext(decoder.get(), &rgba, &end) == 0) {
      ADD_FAILURE() << "a frame is damaged";
      return played;
    }
    std::vector<uint8_t>& rgb = played.frames.emplace_back();
    const size_t num_pixels = size_t{info.canvas_width} * info.canvas_height;
    for (size_t pixel = 0; pixel < num_pixels; ++pixel) {
      rgb.insert(rgb.end(), rgba + pixel * 4, rgba + pixel * 4 + 3);
    }
    played.ends.push_back(end);
  }
  return played;
}

TEST(AnimationTest, FramesAndTimesSurviveExactly) {
  const std::vector<Image> frames = noise_frames(5, 13, 22);
  const Played played = play(encode_webp(frames, 8.0));
  EXPECT_EQ(played.height, 13U);
  EXPECT_EQ(played.width, 22U);
  EXPECT_EQ(played.loops, 0U);  // for ever
  EXPECT_THAT(played.ends, ElementsAre(125, 250, 375, 500, 625));
  ASSERT_EQ(played.frames.size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(played.frames[i], frames[i].pixels) << i;
  }
}

TEST(AnimationTest, TimesAreRoundedWithoutDrift) {
  const Played played = play(encode_webp(noise_frames(4, 8, 8), 30.0));
  EXPECT_THAT(played.ends, ElementsAre(33, 67, 100, 133));
}

TEST(AnimationTest, EqualNeighboursBecomeOneFrame) {
  std::vector<Image> frames = noise_frames(3, 8, 8);
  frames[1] = frames[0];
  const Played played = play(encode_webp(frames, 10.0));
  EXPECT_THAT(played.ends, ElementsAre(200, 300));
  EXPECT_EQ(played.frames[1], frames[2].pixels);
}

TEST(AnimationTest, OneFrameIsAPicture) {
  const std::vector<Image> frames = noise_frames(1, 9, 7);
  EXPECT_EQ(decode_image(encode_webp(frames, 8.0), "one").pixels, frames[0].pixels);
}

TEST(AnimationTest, OurReaderSeesTheFirstFrame) {
  const std::vector<Image> frames = noise_frames(3, 9, 7);
  EXPECT_EQ(decode_image(encode_webp(frames, 8.0), "clip").pixels, frames[0].pixels);
}

TEST(AnimationTest, WritesFilesThatReadBack) {
  const test::TemporaryFolder folder;
  const std::vector<Image> frames = noise_frames(11, 8, 6);
  write_webp(folder / "clip.webp", frames, 8.0);
  EXPECT_EQ(play(read_file(folder / "clip.webp", 1 << 20)).frames.size(), 11U);

  write_frames(folder / "a/b", frames);
  const std::vector<std::byte> last = read_file(folder / "a/b/frame_0010.png", 1 << 20);
  EXPECT_EQ(decode_image(last, "last").pixels, frames[10].pixels);

  const Image strip = make_grid(frames, {.rows = 1, .padding = 0});
  EXPECT_EQ(strip.height, 8);
  EXPECT_EQ(strip.width, 66);
  EXPECT_EQ(strip.pixels[size_t{3} * 60], frames[10].pixels[0]);
}

TEST(AnimationTest, RefusesWhatIsNoClip) {
  std::vector<Image> frames = noise_frames(2, 8, 6);
  const auto message = [](std::span<const Image> clip, double fps) {
    return test::error_message(ErrorKind::kShape, [&] { (void)encode_webp(clip, fps); });
  };
  EXPECT_THAT(message({}, 8.0), HasSubstr("got none"));
  EXPECT_THAT(message(frames, 0.0), HasSubstr("got 0"));
  EXPECT_THAT(message(frames, 2000.0), HasSubstr("got 2000"));
  frames[1].pixels.pop_back();
  EXPECT_THAT(message(frames, 8.0), AllOf(HasSubstr("6 x 8"), HasSubstr("143 bytes")));
  frames[1] = noise_frames(1, 8, 7)[0];
  EXPECT_THAT(message(frames, 8.0), AllOf(HasSubstr("6 x 8"), HasSubstr("got 7 x 8")));
}

TEST(AnimationTest, NamesAFolderThatCannotBeMade) {
  const test::TemporaryFolder folder;
  const std::vector<Image> frames = noise_frames(1, 8, 6);
  write_png(folder / "file", frames[0]);
  EXPECT_THAT(test::error_message(ErrorKind::kIo, [&] { write_frames(folder / "file/x", frames); }),
              HasSubstr("file/x"));
}

}  // namespace animation_test
}  // namespace kinora::io
