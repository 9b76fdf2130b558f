#include "kinora/data/class_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace class_folder_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

TEST(ClassFolderTest, LabelsAreBytewisePositionsAsInImageFolder) {
  const TemporaryFolder folder;
  folder.write("set/zebra/1.png", grey_png(1));
  folder.write("set/ant/b.PNG", grey_png(3));
  folder.write("set/ant/a.png", grey_png(2));
  folder.write("set/Bee/x.jpeg", fixture("photo.jpg"));
  folder.write("set/Bee/y.webp", fixture("photo.webp"));
  // Passed over: not an image, hidden, outside of class folders.
  folder.write("set/ant/notes.txt", "notes");
  folder.write("set/ant/._a.png", "resource fork");
  folder.write("set/.cache/c.png", grey_png(9));
  folder.write("set/top.png", grey_png(9));
  const ClassFolder source(folder.path() / "set");
  EXPECT_THAT(source.class_names(), ElementsAre("Bee", "ant", "zebra"));
  EXPECT_THAT(passed_over(source, (folder.path() / "set").string()),
              ElementsAre("ant/notes.txt: not a picture that Kinora reads",
                          "top.png: outside of the class folders"));
  ASSERT_EQ(source.size(), 5);

  Sample sample;
  source.read(0, sample);
  EXPECT_EQ(sample.label, 0);
  EXPECT_EQ(sample.image.height, 30);
  EXPECT_EQ(sample.image.width, 40);
  source.read(1, sample);
  EXPECT_EQ(sample.label, 0);
  EXPECT_EQ(sample.image.width, 40);
  source.read(2, sample);
  EXPECT_EQ(sample.label, 1);
  EXPECT_EQ(sample.image.pixels.front(), 2);
  source.read(3, sample);
  EXPECT_EQ(sample.label, 1);
  EXPECT_EQ(sample.image.pixels.front(), 3);
  source.read(4, sample);
  EXPECT_EQ(sample.label, 2);
  EXPECT_EQ(sample.image.pixels.front(), 1);
  EXPECT_EQ(source.sample_name(4), (folder.path() / "set/zebra/1.png").string());
}

TEST(ClassFolderTest, FollowsLinks) {
  const TemporaryFolder folder;
  folder.write("store/1.png", grey_png(1));
  folder.write("store/2.png", grey_png(2));
  fs::create_directory(folder.path() / "set");
  fs::create_directory_symlink(folder.path() / "store", folder.path() / "set/linked");
  EXPECT_EQ(ClassFolder(folder.path() / "set").size(), 2);
}

TEST(ClassFolderTest, NamesTheFileThatCannotBeRead) {
  const TemporaryFolder folder;
  const std::vector<std::byte> jpeg = fixture("photo.jpg");
  const std::vector<std::byte> png = grey_png(5, 64, 64);
  folder.write("set/a/cut.jpg", std::span(jpeg).first(jpeg.size() / 2));
  folder.write("set/a/cut.png", std::span(png).first(png.size() - 20));
  folder.write("set/a/empty.jpg", "");
  folder.write("set/a/text.png", "this is no image");
  fs::create_symlink(folder.path() / "nowhere", folder.path() / "set/a/lost.png");
  const ClassFolder source(folder.path() / "set");
  ASSERT_EQ(source.size(), 5);
  Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    try {
      source.read(i, sample);
      FAIL() << source.sample_name(i);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_THAT(error.what(), HasSubstr(source.sample_name(i)));
    }
  }
}

TEST(ClassFolderTest, RefusesSetsThatCannotBeMeant) {
  const TemporaryFolder folder;
  const auto message = [&folder](const std::string& name) {
    return error_of([&] { ClassFolder source(folder.path() / name); });
  };
  EXPECT_THAT(message("missing"),
              AllOf(HasSubstr("missing"), HasSubstr("No such file"), HasSubstr("data.path")));

  folder.write("file.tar", "x");
  EXPECT_THAT(message("file.tar"), HasSubstr("Not a directory"));

  fs::create_directory(folder.path() / "empty");
  EXPECT_THAT(message("empty"), HasSubstr("0 files and no folder"));

  folder.write("flat/1.png", grey_png(1));
  folder.write("flat/2.png", grey_png(1));
  EXPECT_THAT(message("flat"), AllOf(HasSubstr("2 files (first: 1.png) and no folder"),
                                     HasSubstr("set without classes")));

  folder.write("class/full/1.png", grey_png(1));
  folder.write("class/full/2.png", grey_png(1));
  folder.write("class/void/x.txt", "x");
  EXPECT_THAT(message("class"),
              AllOf(HasSubstr("class/void"), HasSubstr("1 other file (first: x.txt)")));

  folder.write("high/train/cat/1.png", grey_png(1));
  EXPECT_THAT(message("high"), AllOf(HasSubstr("first: cat"), HasSubstr("set data.path to"),
                                     HasSubstr("high/train.")));

  folder.write("one/class/1.png", grey_png(1));
  EXPECT_THAT(message("one"), HasSubstr("at least 2 images, got 1"));
}

}  // namespace class_folder_test
}  // namespace kinora::data
