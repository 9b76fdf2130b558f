// Class folders and archives of video files, from files to batches.
#include <algorithm>
#include <filesystem>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/class_folder.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/data_config.h"
#include "kinora/data/loader.h"
#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "kinora/data/video_clip.h"
#include "kinora/io/video.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace video_files_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kSide = 32;
constexpr WantedFiles kVideos{.videos = true, .default_fps = 5.0};

// `count` frames, the k-th of grey 20 + 4 k; empty where MP4 cannot be written here.
std::vector<std::byte> movie(int64_t count, double fps) {
  std::vector<io::Image> frames;
  for (int64_t k = 0; k < count; ++k) {
    frames.push_back(grey_image(static_cast<uint8_t>(20 + 4 * k), kSide, kSide));
  }
  return io::encode_mp4(frames, {.fps = fps, .quality = 90});
}

int64_t frame_of(uint8_t grey) {
  return (grey - 18) / 4;
}

#define SKIP_WITHOUT_MP4()                           \
  try {                                              \
    (void)movie(1, 8.0);                             \
  } catch (const std::exception& error) {            \
    GTEST_SKIP() << "no MP4 here: " << error.what(); \
  }

// The frames in sample `i` of a batch.
std::vector<int64_t> frames_in(const Batch& batch, int64_t i) {
  const at::Tensor& images = batch.images;  // [B, 3, T, H, W]
  const int64_t plane = images.size(3) * images.size(4);
  std::vector<int64_t> numbers;
  for (int64_t t = 0; t < images.size(2); ++t) {
    const uint8_t* first = images.const_data_ptr<uint8_t>() + (i * 3 * images.size(2) + t) * plane;
    numbers.push_back(frame_of(first[plane / 2]));
  }
  return numbers;
}

LoaderOptions options_for(int64_t frames) {
  LoaderOptions options;
  options.height = kSide;
  options.width = kSide;
  options.frames = frames;
  options.micro_batch = 4;
  options.global_batch = 4;
  options.num_threads = 2;
  return options;
}

class VideoFilesTest : public testing::Test {
 protected:
  // Two classes: clips of 24 frames a second, and of 48.
  void write_set() const {
    for (const int number : {0, 1, 2}) {
      const std::string name = "/" + std::to_string(number) + ".mp4";
      folder_.write("slow" + name, movie(20 + number, 24.0));
      folder_.write("fast" + name, movie(40 + number, 48.0));
    }
    folder_.write("slow/notes.txt", std::string("no clip"));
  }

  TemporaryFolder folder_;
};

TEST_F(VideoFilesTest, ClassFoldersGiveTheChosenFrames) {
  SKIP_WITHOUT_MP4();
  write_set();
  const ClassFolder source(folder_.path(), kVideos);
  EXPECT_EQ(source.size(), 6);
  EXPECT_TRUE(source.is_video());
  EXPECT_THAT(source.class_names(), testing::ElementsAre("fast", "slow"));
  ASSERT_EQ(source.passed_over().size(), 1U);
  EXPECT_THAT(source.passed_over()[0].name, HasSubstr("notes.txt"));

  LoaderOptions options = options_for(5);
  options.max_fps = 24.0;
  Loader loader(source, options);
  for (int64_t number = 0; number < 6; ++number) {
    const Batch batch = loader.next();
    for (int64_t i = 0; i < 4; ++i) {
      const bool is_fast = batch.labels.const_data_ptr<int64_t>()[i] == 0;
      EXPECT_EQ(batch.fps.const_data_ptr<float>()[i], 24.0F);
      const std::vector<int64_t> numbers = frames_in(batch, i);
      for (size_t t = 1; t < numbers.size(); ++t) {
        EXPECT_EQ(numbers[t] - numbers[t - 1], is_fast ? 2 : 1);
      }
    }
  }
}

// Texts are checked with the caption and the class of the clip at hand, not of the one before.
TEST_F(VideoFilesTest, ChecksLeaveCaptionsAndClasses) {
  SKIP_WITHOUT_MP4();
  write_set();
  folder_.write("slow/0.txt", std::string("one caption"));
  const MediaSource clips(list_captioned_folder(folder_.path()));
  Sample scratch;
  int64_t num_with_caption = 0;
  for (int64_t i = 0; i < clips.size(); ++i) {
    const SampleFacts facts = clips.check(i, scratch);
    EXPECT_EQ(facts.caption_length, std::ssize(scratch.caption));
    EXPECT_EQ(facts.num_frames, i < 3 ? 40 + i : 17 + i);
    num_with_caption += scratch.caption.empty() ? 0 : 1;
  }
  EXPECT_EQ(num_with_caption, 1);
  const ClassFolder classes(folder_.path(), kVideos);
  (void)classes.check(5, scratch);
  EXPECT_EQ(scratch.label, 1);
}

TEST_F(VideoFilesTest, ArchivesGiveTheSame) {
  SKIP_WITHOUT_MP4();
  std::vector<std::pair<std::string, std::vector<std::byte>>> files;
  for (const int number : {0, 1, 2, 3}) {
    const std::string name = "only/" + std::to_string(number) + ".mp4";
    files.emplace_back(name, movie(12 + number, 10.0));
    folder_.write("set/" + name, files.back().second);
  }
  const ClassTar archive({folder_.write("set.tar", tar(files))}, kVideos);
  const ClassFolder folder(folder_.path() / "set", kVideos);
  const std::vector<int64_t> all = {0, 1, 2, 3};
  const SampleSize size{.height = kSide, .width = kSide, .frames = 4, .frame_stride = 3};
  const Batch from_archive = load_samples(archive, all, size);
  EXPECT_TRUE(from_archive.images.equal(load_samples(folder, all, size).images));
  EXPECT_THAT(frames_in(from_archive, 0), testing::ElementsAre(1, 4, 7, 10));  // the middle ones
}

TEST_F(VideoFilesTest, FactsAreOfTheHeaderAndOfEveryFrame) {
  SKIP_WITHOUT_MP4();
  write_set();
  const ClassFolder source(folder_.path(), kVideos);
  const SampleFacts expected{.height = kSide, .width = kSide, .num_frames = 41, .fps = 48.0F};
  EXPECT_EQ(source.facts(1), expected);
  Sample scratch;
  EXPECT_EQ(source.check(1, scratch), expected);
}

TEST_F(VideoFilesTest, WithoutAChoiceAllFramesAreRead) {
  SKIP_WITHOUT_MP4();
  write_set();
  const ClassFolder source(folder_.path(), kVideos);
  Sample sample;
  source.read(4, sample);
  EXPECT_EQ(sample.num_frames, 21);
  EXPECT_EQ(sample.fps, 24.0F);
  EXPECT_EQ(sample.label, 1);
  for (int64_t k = 0; k < 21; ++k) {
    const auto place = static_cast<size_t>((k * kSide + kSide / 2) * 3);
    EXPECT_EQ(frame_of(sample.image.pixels[place]), k);
  }
}

TEST_F(VideoFilesTest, ShortAndDamagedFilesAreNamedAndReplaced) {
  SKIP_WITHOUT_MP4();
  write_set();
  std::vector<std::byte> cut = movie(30, 24.0);
  cut.resize(cut.size() - 200);
  folder_.write("slow/cut.mp4", cut);
  folder_.write("slow/short.mp4", movie(3, 24.0));
  folder_.write("slow/text.mp4", std::string("not a video at all"));
  const ClassFolder source(folder_.path(), kVideos);
  LoaderOptions options = options_for(5);
  options.max_bad = 3;
  Loader loader(source, options);
  for (int64_t number = 0; number < 6; ++number) {
    (void)loader.next();
  }
  EXPECT_EQ(loader.stats().num_bad, 3);
  options.max_bad = 2;
  EXPECT_THAT(error_of([&] {
                Loader strict(source, options);
                for (int64_t number = 0; number < 6; ++number) {
                  (void)strict.next();
                }
              }),
              AllOf(HasSubstr("cut.mp4"), HasSubstr("early"), HasSubstr("short.mp4"),
                    HasSubstr("at least 5 frames"), HasSubstr("text.mp4")));
}

TEST_F(VideoFilesTest, CaptionsAndManifestsNameClips) {
  SKIP_WITHOUT_MP4();
  for (const int number : {0, 1, 2}) {
    const std::string name = "set/" + std::to_string(number);
    folder_.write(name + ".mp4", movie(10, 12.0));
    folder_.write(name + ".txt", "clip " + std::to_string(number));
  }
  const std::string table =
      folder_.write("set/all.csv", std::string("path,text\n0.mp4,a\n1.mp4,b\n"));
  DataConfig config;
  config.path = {(folder_.path() / "set").string()};
  config.height = kSide;
  config.width = kSide;
  config.frame_layout = FrameLayout::kVideo;
  config.frames = 4;
  const std::vector<int64_t> last = {1};
  for (const SourceKind kind : {SourceKind::kCaptions, SourceKind::kManifest}) {
    config.source = kind;
    if (kind == SourceKind::kManifest) {
      config.path = {table};
    }
    const std::unique_ptr<Source> source = open_source(config);
    EXPECT_TRUE(source->is_video());
    Sample sample;
    source->read(1, sample);
    EXPECT_EQ(sample.caption, kind == SourceKind::kManifest ? "b" : "clip 1");
    EXPECT_EQ(sample.num_frames, 10);
    EXPECT_EQ(source->facts(1).num_frames, 10);
    EXPECT_EQ(source->check(1, sample).fps, 12.0F);
    EXPECT_EQ(frames_in(load_samples(*source, last, sample_size(config)), 0),
              (std::vector<int64_t>{3, 4, 5, 6}));
  }
  // Without saying so they are images: one frame of each.
  config.frame_layout = FrameLayout::kImage;
  config.frames = 1;
  const Batch batch = load_samples(*open_source(config), last, sample_size(config));
  EXPECT_EQ(batch.images.sizes(), at::IntArrayRef({1, 3, kSide, kSide}));
  EXPECT_EQ(frame_of(batch.images.const_data_ptr<uint8_t>()[kSide]), 5);
}

}  // namespace video_files_test
}  // namespace kinora::data
