#include "kinora/io/video.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/philox.h"
#include "kinora/io/file.h"
#include "tests/io/io_testing.h"
#include "tests/io/video_testing.h"
#include "tests/places.h"

// The fixtures, and what their frames show: tools/make_video_fixtures.py.
namespace kinora::io {
namespace video_test {

namespace fs = std::filesystem;
using test::colour_at;
using test::count_up;
using test::error_message;
using test::expect_colour;
using test::numbers_on;
using test::pixel;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

fs::path fixture(const std::string& name) {
  return source_path("tests/io/data/videos") / name;
}

struct Kind {
  std::string name;
  std::string codec;
  int64_t frames;
  int64_t declared;  // 0: the header does not say
  double fps;
  int64_t first_number = 0;  // on frame 0

  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
};

class VideoFileTest : public ::testing::TestWithParam<Kind> {};

TEST_P(VideoFileTest, FramesAreReadByTheirNumbers) {
  SKIP_WITHOUT_VIDEO();
  const Kind& kind = GetParam();
  VideoFile file = VideoFile::open(fixture(kind.name));
  EXPECT_EQ(file.info().codec, kind.codec);
  EXPECT_EQ(file.info().declared_frames, kind.declared);
  EXPECT_NEAR(file.info().fps, kind.fps, 0.02 * kind.fps);
  ASSERT_EQ(file.num_frames(), kind.frames);
  EXPECT_EQ(file.check_frames(), kind.frames);
  // All at once, then single ones and spans, forwards and backwards.
  EXPECT_EQ(numbers_on(file, 0, kind.frames, 1), count_up(kind.first_number, kind.frames));
  for (int64_t k = 0; k < kind.frames; ++k) {
    const int64_t first = k * 7 % kind.frames;
    EXPECT_EQ(numbers_on(file, first, 1, 5), count_up(kind.first_number + first, 1));
    const int64_t stride = 1 + k % 4;
    const int64_t count = (kind.frames - 1 - first) / stride + 1;
    EXPECT_EQ(numbers_on(file, first, count, stride),
              count_up(kind.first_number + first, count, stride));
  }
  const auto refused = [&](int64_t first, int64_t count, int64_t stride) {
    return error_message(ErrorKind::kShape, [&] {
      Image strip;
      file.read_frames(first, count, stride, strip);
    });
  };
  EXPECT_THAT(refused(kind.frames, 1, 1),
              AllOf(HasSubstr(kind.name), HasSubstr("0 to " + std::to_string(kind.frames - 1))));
  (void)refused(0, kind.frames + 1, 1);
  (void)refused(0, 2, kind.frames);
  (void)refused(0, int64_t{1} << 62, int64_t{1} << 62);
  (void)refused(-1, 1, 1);
  (void)refused(0, 0, 1);
  (void)refused(0, 1, 0);
}

// 30 frames in 1.587 s are the uneven ones, 20 in 1.18 s those of the GIF.
INSTANTIATE_TEST_SUITE_P(
    Kinds, VideoFileTest,
    ::testing::Values(
        Kind{"bframes.mp4", "h264", 40, 40, 25.0}, Kind{"fast_start.mp4", "h264", 20, 20, 25.0},
        Kind{"fragmented.mp4", "h264", 30, 0, 25.0}, Kind{"open_gop.mkv", "h264", 40, 0, 25.0},
        Kind{"uneven.mp4", "h264", 30, 30, 18.9}, Kind{"uneven.mkv", "h264", 30, 0, 25.0},
        Kind{"edit_list.mp4", "h264", 23, 30, 25.0, 7}, Kind{"one.mp4", "h264", 1, 1, 25.0},
        Kind{"odd.mp4", "h264", 6, 6, 25.0}, Kind{"full_range.mp4", "h264", 3, 3, 25.0},
        Kind{"hevc.mp4", "hevc", 30, 30, 25.0}, Kind{"hidden.webm", "vp8", 40, 0, 25.0},
        Kind{"vp9.webm", "vp9", 30, 0, 25.0}, Kind{"no_times.avi", "mpeg4", 30, 30, 25.0},
        Kind{"still.avi", "mjpeg", 8, 8, 25.0}, Kind{"parts.gif", "gif", 20, 20, 16.9}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '.', '_');
      return name;
    });

TEST(VideoTest, TurnsFramesAsPhonesNoteIt) {
  SKIP_WITHOUT_VIDEO();
  VideoFile file = VideoFile::open(fixture("turned.mp4"));
  EXPECT_EQ(file.info().height, 72);
  EXPECT_EQ(file.info().width, 48);
  Image strip;
  file.read_frames(3, 2, 1, strip);
  // Stored it is digits above, red at the lower left, blue at the lower right.
  for (const int64_t left : {0, 48}) {
    expect_colour(colour_at(strip, left + 12, 18), {230, 20, 20});
    expect_colour(colour_at(strip, left + 12, 54), {20, 20, 230});
    int64_t number = 0;
    for (int64_t digit = 0; digit < 6; ++digit) {
      number = 2 * number + (*pixel(strip, left + 36, digit * 12 + 6) > 128 ? 1 : 0);
    }
    EXPECT_EQ(number, left == 0 ? 3 : 4);
  }
}

TEST(VideoTest, ColoursComeBackFromEveryKindOfPixels) {
  SKIP_WITHOUT_VIDEO();
  for (const std::string name : {"bframes.mp4", "odd.mp4", "full_range.mp4", "hevc.mp4", "vp9.webm",
                                 "hidden.webm", "still.avi", "no_times.avi", "parts.gif"}) {
    SCOPED_TRACE(name);
    VideoFile file = VideoFile::open(fixture(name));
    Image frame;
    file.read_frames(0, 1, 1, frame);
    expect_colour(colour_at(frame, frame.width / 4, frame.height * 3 / 4), {230, 20, 20});
    expect_colour(colour_at(frame, frame.width * 3 / 4, frame.height * 3 / 4), {20, 20, 230});
  }
}

TEST(VideoTest, ReadsFromMemoryAndInThreads) {
  SKIP_WITHOUT_VIDEO();
  const std::array<std::string, 4> names = {"bframes.mp4", "hevc.mp4", "open_gop.mkv", "vp9.webm"};
  std::vector<std::vector<std::byte>> files;
  for (const std::string& name : names) {
    files.push_back(read_file(fixture(name), 1 << 20));
  }
  // Each thread goes from one kind to another, and back to what it has a decoder for.
  const auto work = [&](size_t first) {
    for (size_t i = 0; i < 24; ++i) {
      const size_t which = (first + i / 3) % names.size();
      VideoFile file = VideoFile::open(files[which], names[which]);
      EXPECT_EQ(numbers_on(file, 5, 8, 3), count_up(5, 8, 3));
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back(work, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(VideoTest, TwoFilesAreReadInTurns) {
  SKIP_WITHOUT_VIDEO();
  VideoFile a = VideoFile::open(fixture("bframes.mp4"));
  VideoFile b = VideoFile::open(fixture("open_gop.mkv"));
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(numbers_on(a, i, 1, 1), count_up(i, 1));
    EXPECT_EQ(numbers_on(b, 39 - i, 1, 1), count_up(39 - i, 1));
  }
  b = std::move(a);
  EXPECT_EQ(numbers_on(b, 7, 2, 1), count_up(7, 2));
}

// Everything that a file says, or why it cannot be read: how many frames.
int64_t read_all(std::span<const std::byte> bytes, const std::string& name) {
  VideoFile file = VideoFile::open(bytes, name);
  const int64_t count = file.num_frames();
  EXPECT_EQ(file.check_frames(), count);
  Image strip;
  file.read_frames(count / 2, 1, 1, strip);
  return count;
}

TEST(VideoTest, FilesCutShortAreErrors) {
  SKIP_WITHOUT_VIDEO();
  for (const auto& entry : fs::directory_iterator(fixture(""))) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    const std::vector<std::byte> bytes = read_file(entry.path(), 1 << 20);
    const int64_t whole = read_all(bytes, name);
    for (size_t part = 0; part < 24; ++part) {
      const size_t size = bytes.size() * part / 24 + part % 3;
      try {
        const int64_t count = read_all(std::span(bytes).first(size), name);
        // What a reader can do without, as an index at the end, may be missing; and a recording in
        // fragments, here of 12 frames, is whole after each of them.
        EXPECT_TRUE(count == whole || (name == "fragmented.mp4" && count % 12 == 0))
            << count << " in " << size;
        EXPECT_GT(part, 12U) << size;
      } catch (const Error& error) {
        EXPECT_EQ(to_string(error.kind()), to_string(ErrorKind::kIo));
        EXPECT_THAT(error.what(), HasSubstr(name));
      }
    }
  }
}

TEST(VideoTest, DamageSaysHowManyFramesCameBefore) {
  SKIP_WITHOUT_VIDEO();
  std::vector<std::byte> bytes = read_file(fixture("fast_start.mp4"), 1 << 20);
  ASSERT_GT(bytes.size(), 100U);
  bytes.erase(bytes.end() - 100, bytes.end());
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)read_all(bytes, "cut.mp4"); }),
              AllOf(HasSubstr("cut.mp4"), HasSubstr("early"), HasSubstr("frames lie before"),
                    HasSubstr("of 20")));
}

TEST(VideoTest, DamagedFilesNeverHangOrCrash) {
  SKIP_WITHOUT_VIDEO();
  uint32_t number = 0;
  int64_t num_refused = 0;
  for (const auto& entry : fs::directory_iterator(fixture(""))) {
    const std::vector<std::byte> bytes = read_file(entry.path(), 1 << 20);
    for (uint32_t trial = 0; trial < 20; ++trial) {
      std::vector<std::byte> damaged = bytes;
      const RandomStream key{11, number++};
      const auto num_changes = 1 + random_index(key, 0, 8);
      for (uint64_t i = 0; i < static_cast<uint64_t>(num_changes); ++i) {
        // Half of them in the first bytes, where the structure is.
        const size_t room = i % 2 == 0 ? std::min<size_t>(bytes.size(), 600) : bytes.size();
        const auto place = random_index(key, 3 * i + 1, static_cast<int64_t>(room));
        damaged[static_cast<size_t>(place)] =
            static_cast<std::byte>(random_index(key, 3 * i + 2, 256));
      }
      try {
        EXPECT_GE(read_all(damaged, "damaged"), 1);
      } catch (const Error& error) {
        EXPECT_EQ(to_string(error.kind()), to_string(ErrorKind::kIo)) << error.what();
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, 50);
}

TEST(VideoTest, RefusesWhatIsNoVideo) {
  SKIP_WITHOUT_VIDEO();
  const auto message = [](std::string_view text) {
    return error_message(ErrorKind::kIo,
                         [&] { (void)VideoFile::open(std::as_bytes(std::span(text)), "odd"); });
  };
  EXPECT_THAT(message(""), AllOf(HasSubstr("odd"), HasSubstr("empty")));
  EXPECT_THAT(message("#EXTM3U\n#EXT-X-VERSION:3\nhttp://localhost/a.ts\n"),
              HasSubstr("begins like none of them"));
  EXPECT_THAT(message("ffconcat version 1.0\nfile /etc/passwd\n"),
              HasSubstr("begins like none of them"));
  EXPECT_THAT(message(std::string("\0\0\0\x10"
                                  "ftypisom\0\0\0\0",
                                  16)),
              HasSubstr("odd"));
  EXPECT_THAT(message("GIF89a"), HasSubstr("odd"));
  EXPECT_THAT(
      error_message(ErrorKind::kIo, [] { (void)VideoFile::open(fixture("no such file.mp4")); }),
      HasSubstr("no such file.mp4"));
  const TemporaryFolder folder;
  (void)error_message(ErrorKind::kIo, [&] { (void)VideoFile::open(folder.path()); });
}

TEST(VideoTest, SaysWhatIsMissingWithoutTheModule) {
  const TemporaryFolder empty;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not loaded it
  EXPECT_EXIT(
      {
        ::setenv("KINORA_MODULES", empty.path().c_str(), 1);
        const auto reason = why_no_video();
        std::fputs(reason ? reason->c_str() : "there", stderr);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "no video module.*scripts/setup.sh --video");
}

// Real clips, where there are: frames by number are those of a pass over the file.
TEST(VideoTest, RealClipsAreReadByFrameNumbers) {
  SKIP_WITHOUT_VIDEO();
  const char* data = std::getenv("KINORA_DATA");
  const fs::path folder =
      (data != nullptr ? fs::path(data) : source_path("../shared/data")) / "clips";
  if (!fs::is_directory(folder)) {
    GTEST_SKIP() << "no real data: " << folder << " is absent (set KINORA_DATA)";
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".mp4") {
      continue;
    }
    SCOPED_TRACE(entry.path());
    VideoFile file = VideoFile::open(entry.path());
    const int64_t count = file.num_frames();
    EXPECT_EQ(count, file.info().declared_frames);
    const int64_t first = count / 2 - 3;
    Image span;
    file.read_frames(first, 4, 1, span);
    Image frame;
    for (int64_t i = 0; i < 4; ++i) {
      file.read_frames(0, (first + i) / 7 + 1, 7, frame);  // from the start of the file
      file.read_frames(first + i, 1, 1, frame);
      for (int64_t y = 0; y < frame.height; ++y) {
        ASSERT_TRUE(std::equal(pixel(frame, 0, y), pixel(frame, 0, y) + frame.width * 3,
                               pixel(span, i * frame.width, y)))
            << i << " row " << y;
      }
    }
  }
}

}  // namespace video_test
}  // namespace kinora::io
