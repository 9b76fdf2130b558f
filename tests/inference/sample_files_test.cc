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
    (void)claim_folder(folder_, key, overwrite);
  }

  void touch(const std::string& name) const { std::ofstream(folder_ / name) << "x"; }
  [[nodiscard]] bool has(const std::string& name) const { return fs::exists(folder_ / name); }

  fs::path folder_;
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
  const io::FileLock held = claim_folder(folder_, {}, false);
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { claim({}); }), HasSubstr("another process draws"));
}

}  // namespace sample_files_test
}  // namespace kinora::inference
