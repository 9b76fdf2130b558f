// What is in a folder of samples while they are drawn, and after.

#include "kinora/inference/sample_files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "kinora/inference/sample_folder.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/io/safetensors.h"
#include "tests/error_of.h"

namespace kinora::inference {
namespace sample_files_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class SampleFilesTest : public testing::Test {
 protected:
  SampleFilesTest()
      : folder_(fs::path(testing::TempDir()) / ("samples-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
  }
  ~SampleFilesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] SampleFilesOptions options(SampleKind kind, int64_t count) const {
    SampleFilesOptions options{.folder = folder_, .kind = kind, .labels = {}, .fps = 8.0};
    options.labels.resize(static_cast<size_t>(count));
    return options;
  }

  void claim(const DrawingKey& key, bool overwrite = false) const {
    (void)claim_folder(
        folder_, 0, [&](int64_t /*count*/) { return key; }, overwrite);
  }

  void touch(const std::string& name) const { std::ofstream(folder_ / name) << "x"; }
  [[nodiscard]] bool has(const std::string& name) const { return fs::exists(folder_ / name); }

  fs::path folder_;
  int64_t last_ = 0;
};

/// Images [count, 3, 4, 6], each of one grey.
at::Tensor greys(int64_t count) {
  return at::linspace(-1.0, 1.0, count).view({count, 1, 1, 1}).expand({count, 3, 4, 6});
}

TEST_F(SampleFilesTest, ImagesAppearBatchByBatchAndThenAllTogether) {
  claim({});
  SampleFiles files(options(SampleKind::kImages, 4));
  files.write(2, greys(4).narrow(0, 2, 2));
  files.flush();
  EXPECT_THAT(files.there(), ElementsAre(false, false, true, true));
  EXPECT_FALSE(has("grid.png"));
  const auto before = fs::last_write_time(folder_ / "image-00002.png");
  files.write(0, greys(4));  // two of them are there
  EXPECT_THAT(files.finish(), HasSubstr("4 images in"));
  EXPECT_EQ(fs::last_write_time(folder_ / "image-00002.png"), before);
  EXPECT_TRUE(has("grid.png"));
  EXPECT_FALSE(has(".drawing/tile-00000.png"));
}

TEST_F(SampleFilesTest, TheContactSheetIsOfTheFirstOnes) {
  claim({});
  SampleFiles files(options(SampleKind::kImages, 260));
  files.write(0, greys(260));
  EXPECT_THAT(files.finish(), HasSubstr("260 images in"));
  const io::Image grid = io::decode_image(io::read_file(folder_ / "grid.png", 1 << 24), "grid.png");
  EXPECT_EQ(grid.width, 16 * (6 + 2) + 2);
  EXPECT_EQ(grid.height, 16 * (4 + 2) + 2);
}

TEST_F(SampleFilesTest, AClipIsThereWhenItsFramesAndItsAnimationAre) {
  claim({});
  SampleFiles files(options(SampleKind::kClips, 1));
  const at::Tensor clip = at::full({1, 3, 3, 4, 6}, 0.5);
  files.write(0, clip);
  files.flush();
  EXPECT_THAT(files.there(), ElementsAre(true));
  fs::remove(folder_ / "clip-00000.webp");
  EXPECT_THAT(files.there(), ElementsAre(false));
  files.write(0, clip);
  EXPECT_THAT(files.finish(), HasSubstr("1 clips in"));
  EXPECT_TRUE(has("clip-00000/frame_0002.png"));
}

TEST_F(SampleFilesTest, LatentsAreJoinedAtTheEnd) {
  claim({});
  SampleFilesOptions of_classes = options(SampleKind::kLatents, 3);
  of_classes.labels = {4, 5, 6};
  const at::Tensor latents = at::arange(3 * 4 * 2 * 2, at::kFloat).view({3, 4, 2, 2});
  {
    SampleFiles files(of_classes);
    files.write(1, latents.narrow(0, 1, 2));
  }
  SampleFiles files(of_classes);
  EXPECT_THAT(files.there(), ElementsAre(false, true, true));
  files.write(0, latents.narrow(0, 0, 1));
  EXPECT_THAT(files.finish(), HasSubstr("latents.safetensors"));
  const auto file = io::SafetensorsFile::open(folder_ / "latents.safetensors");
  EXPECT_THAT(file.find("latents")->shape, ElementsAre(3, 4, 2, 2));
  EXPECT_TRUE(std::ranges::equal(file.find("latents")->data,
                                 std::as_bytes(std::span(latents.const_data_ptr<float>(), 48))));
  const std::vector<int64_t> labels = {4, 5, 6};
  EXPECT_TRUE(std::ranges::equal(file.find("labels")->data, std::as_bytes(std::span(labels))));
  EXPECT_FALSE(has(".drawing/latent-00000.safetensors"));
  EXPECT_THAT(files.there(), ElementsAre(true, true, true));
}

/// What a drawing of more makes of the same folder, after one of fewer was finished.
TEST_F(SampleFilesTest, AFinishedDrawingGrows) {
  claim({});
  for (const SampleKind kind : {SampleKind::kImages, SampleKind::kClips}) {
    const auto drawn = [&](int64_t count) {
      return kind == SampleKind::kImages
                 ? greys(12).narrow(0, 0, count)
                 : greys(12).narrow(0, 0, count).unsqueeze(2).expand({-1, -1, 2, -1, -1});
    };
    {
      SampleFiles files(options(kind, 12));
      files.write(0, drawn(12));
      (void)files.finish();
    }
    const std::vector<std::byte> expected = io::read_file(folder_ / "grid.png", 1 << 24);
    claim({{"seed", "2"}}, /*overwrite=*/true);
    for (const int64_t count : {3, 4, 12, 12}) {  // the last time there is nothing to do
      SampleFiles files(options(kind, count));
      EXPECT_EQ(std::ranges::count(files.there(), true), count == 3 ? 0 : count == 4 ? 3 : last_);
      files.write(0, drawn(count));
      EXPECT_THAT(files.finish(), HasSubstr(", all together in"));
      last_ = count;
    }
    EXPECT_EQ(io::read_file(folder_ / "grid.png", 1 << 24), expected);
    EXPECT_FALSE(has(".drawing/tile-00000.png"));
    claim({}, /*overwrite=*/true);
  }
}

// A grid that somebody else wrote is replaced by one of what is drawn now.
TEST_F(SampleFilesTest, AGridThatCannotBeReadIsNoReasonToFail) {
  claim({});
  {
    SampleFiles files(options(SampleKind::kImages, 2));
    files.write(0, greys(2));
    (void)files.finish();
  }
  touch("grid.png");
  SampleFiles files(options(SampleKind::kImages, 3));
  files.write(0, greys(3));
  EXPECT_THAT(files.finish(), HasSubstr("3 images in"));
}

TEST_F(SampleFilesTest, LatentsOfAFinishedDrawingGrow) {
  claim({});
  const at::Tensor latents = at::arange(5 * 4 * 2 * 2, at::kFloat).view({5, 4, 2, 2});
  for (const int64_t count : {2, 5}) {
    SampleFilesOptions of_classes = options(SampleKind::kLatents, count);
    for (int64_t i = 0; i < count; ++i) {
      of_classes.labels[static_cast<size_t>(i)] = i + 7;
    }
    SampleFiles files(of_classes);
    EXPECT_EQ(std::ranges::count(files.there(), true), count == 2 ? 0 : 2);
    files.write(0, latents.narrow(0, 0, count));
    (void)files.finish();
  }
  const auto file = io::SafetensorsFile::open(folder_ / "latents.safetensors");
  EXPECT_THAT(file.find("latents")->shape, ElementsAre(5, 4, 2, 2));
  EXPECT_TRUE(std::ranges::equal(file.find("latents")->data,
                                 std::as_bytes(std::span(latents.const_data_ptr<float>(), 80))));
  const std::vector<int64_t> labels = {7, 8, 9, 10, 11};
  EXPECT_TRUE(std::ranges::equal(file.find("labels")->data, std::as_bytes(std::span(labels))));
}

TEST_F(SampleFilesTest, AFolderOfFewerSamplesOfTheSameDrawingIsTaken) {
  const auto key_of = [](const std::string& asked) {
    return [asked](int64_t count) {
      return DrawingKey{{"count", std::to_string(count)},
                        {"asked", asked.substr(0, static_cast<size_t>(count))}};
    };
  };
  const auto claim_first = [&](int64_t count, const std::string& asked) {
    (void)claim_folder(folder_, count, key_of(asked), /*overwrite=*/false);
    touch("image-00000.png");
  };
  claim_first(2, "ab");
  claim_first(4, "abcd");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { claim_first(6, "abxdef"); }),
              HasSubstr("asked was abcd and is now abxdef"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { claim_first(3, "abc"); }),
              HasSubstr("count was 4 and is now 3"));
  claim_first(6, "abcdef");
}

TEST_F(SampleFilesTest, AFolderIsOfOneDrawing) {
  const DrawingKey key = {{"seed", "3"}, {"weights", "a"}};
  fs::create_directories(folder_);
  touch("notes.txt");
  touch("image-of-mine.png");
  claim(key);
  claim(key);
  touch("image-00000_class-1.png");
  touch("image-00001_class-2.png.77-8-9.tmp");
  claim(key);
  EXPECT_FALSE(has("image-00001_class-2.png.77-8-9.tmp")) << "a process was killed";
  const DrawingKey other = {{"seed", "4"}, {"weights", "a"}};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { claim(other); }),
              AllOf(HasSubstr("seed was 3 and is now 4"), HasSubstr("--overwrite"),
                    Not(HasSubstr("weights"))));
  EXPECT_TRUE(has("image-00000_class-1.png"));
  claim(other, /*overwrite=*/true);
  EXPECT_FALSE(has("image-00000_class-1.png"));
  EXPECT_TRUE(has("notes.txt"));
  EXPECT_TRUE(has("image-of-mine.png"));
  claim(other);
}

TEST_F(SampleFilesTest, ADrawingThatHasDrawnNothingGivesWay) {
  claim({{"seed", "3"}});
  claim({{"seed", "4"}});
}

TEST_F(SampleFilesTest, SamplesOfAnUnknownDrawingAreKept) {
  fs::create_directories(folder_);
  touch("clip-00000.webp");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { claim({}); }),
              AllOf(HasSubstr("clip-00000.webp"), HasSubstr("--overwrite")));
}

TEST_F(SampleFilesTest, OneProcessDrawsIntoAFolder) {
  const io::FileLock held = claim_folder(
      folder_, 0, [](int64_t /*count*/) { return DrawingKey(); }, false);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { claim({}); }), HasSubstr("another process draws"));
}

}  // namespace sample_files_test
}  // namespace kinora::inference
