#include "kinora/data/class_tar.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/data/files.h"
#include "tests/places.h"

namespace kinora::data {
namespace class_tar_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

std::vector<std::byte> text(const std::string& value) {
  const auto bytes = std::as_bytes(std::span(value));
  return {bytes.begin(), bytes.end()};
}

TEST(ClassTarTest, ArchivesShareOneTableOfClasses) {
  const TemporaryFolder folder;
  const fs::path first = folder.write("a.tar", tar({{"train/zebra/1.png", grey_png(1)},
                                                    {"train/readme.txt", text("x")},
                                                    {"train/zebra/._1.png", text("x")},
                                                    {"train/cat/1.png", grey_png(2)}}));
  const fs::path second = folder.write(
      "b.tar", tar({{"dog/1.jpg", fixture("photo.jpg")}, {"more/of/cat/9.png", grey_png(3)}}));
  const ClassTar source({first, second});
  EXPECT_THAT(source.class_names(), ElementsAre("cat", "dog", "zebra"));
  ASSERT_EQ(source.size(), 4);
  std::vector<int64_t> labels;
  std::vector<int> values;
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    labels.push_back(sample.label);
    values.push_back(sample.image.height == 8 ? sample.image.pixels.front() : -1);
  }
  EXPECT_THAT(labels, ElementsAre(2, 0, 1, 0));
  EXPECT_THAT(values, ElementsAre(1, 2, -1, 3));
  EXPECT_THAT(source.sample_name(3), AllOf(HasSubstr("b.tar"), HasSubstr("more/of/cat/9.png")));
}

TEST(ClassTarTest, NamesTheEntryThatCannotBeRead) {
  const TemporaryFolder folder;
  const fs::path path =
      folder.write("a.tar", tar({{"c/empty.png", {}}, {"c/text.jpg", text("no image")}}));
  const ClassTar source({path});
  Sample sample;
  EXPECT_THAT(error_of([&] { source.read(0, sample); }),
              AllOf(HasSubstr("a.tar"), HasSubstr("c/empty.png")));
  EXPECT_THAT(error_of([&] { source.read(1, sample); }), HasSubstr("c/text.jpg"));
}

TEST(ClassTarTest, RefusesSetsThatCannotBeMeant) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([] { ClassTar source({}); }), HasSubstr("at least one tar archive"));
  EXPECT_THAT(error_of([&] { ClassTar source({folder.path() / "missing.tar"}); }),
              AllOf(HasSubstr("missing.tar"), HasSubstr("No such file")));
  const fs::path other = folder.write("other.tar", std::string(2000, 'x'));
  EXPECT_THAT(error_of([&] { ClassTar source({other}); }), HasSubstr("other.tar"));

  const fs::path none =
      folder.write("none.tar", tar({{"c/x.txt", text("x")}, {"c/y.avif", text("y")}}));
  EXPECT_THAT(error_of([&] { ClassTar source({none}); }),
              AllOf(HasSubstr("got 2 files of other kinds"), HasSubstr("x.txt")));

  const fs::path top = folder.write("top.tar", tar({{"1.png", grey_png(1)}}));
  EXPECT_THAT(error_of([&] { ClassTar source({top}); }),
              AllOf(HasSubstr("folder named like its class"), HasSubstr("1.png")));

  const fs::path one = folder.write("one.tar", tar({{"c/1.png", grey_png(1)}}));
  EXPECT_THAT(error_of([&] { ClassTar source({one}); }), HasSubstr("at least 2 images, got 1"));
}

TEST(ClassTarTest, ReadsCifar10) {
  const char* folder = std::getenv("KINORA_DATA");
  const fs::path path =
      (folder != nullptr ? fs::path(folder) : source_path("../shared/data")) / "cifar10/train.tar";
  if (!fs::exists(path)) {
    GTEST_SKIP() << "no real data: " << path.string() << " is absent (set KINORA_DATA)";
  }
  const ClassTar source({path});
  EXPECT_EQ(source.size(), 50000);
  EXPECT_THAT(source.class_names(), ElementsAre("airplane", "automobile", "bird", "cat", "deer",
                                                "dog", "frog", "horse", "ship", "truck"));
  Sample sample;
  for (const int64_t index : {0, 49999}) {
    source.read(index, sample);
    EXPECT_EQ(sample.image.height, 32);
    EXPECT_EQ(sample.image.width, 32);
  }
  EXPECT_THAT(source.sample_name(0), HasSubstr("airplane/0000.jpg"));
}

}  // namespace class_tar_test
}  // namespace kinora::data
