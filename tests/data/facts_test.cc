// What sources know of samples without decoding them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "kinora/data/class_folder.h"
#include "kinora/data/class_tar.h"
#include "kinora/data/shapes.h"
#include "kinora/data/strips.h"
#include "kinora/data/subset.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace facts_test {

using ::testing::HasSubstr;

TEST(FactsTest, HeadersOfFoldersAndArchivesAreRead) {
  const TemporaryFolder folder;
  folder.write("set/a/0.png", grey_png(1, 6, 10));
  folder.write("set/a/1.jpg", fixture("photo.jpg"));
  const ClassFolder from_folder(folder.path() / "set");
  EXPECT_EQ(from_folder.facts(0), (SampleFacts{.height = 6, .width = 10}));
  const auto archive =
      folder.write("set.tar", tar({{"a/0.png", grey_png(1, 6, 10)}, {"a/1.png", grey_png(2)}}));
  const ClassTar from_tar({archive});
  EXPECT_EQ(from_tar.facts(0), (SampleFacts{.height = 6, .width = 10}));
  const SubsetSource second(from_tar, {1});
  EXPECT_EQ(second.facts(0), (SampleFacts{.height = 8, .width = 8}));
}

TEST(FactsTest, AHeaderIsEnoughForFactsButNotForACheck) {
  const TemporaryFolder folder;
  std::vector<std::byte> png = grey_png(7, 16, 16);
  png.resize(png.size() - 20);  // the end of the pixels
  folder.write("a/0.png", png);
  folder.write("a/1.png", grey_png(1));
  const ClassFolder source(folder.path());
  EXPECT_EQ(source.facts(0), (SampleFacts{.height = 16, .width = 16}));
  Sample scratch;
  EXPECT_THAT(error_of([&] { (void)source.check(0, scratch); }), HasSubstr("0.png"));
  EXPECT_NE(source.check(1, scratch).checksum, 0U);
}

TEST(FactsTest, ChecksumsTellPicturesApart) {
  const TemporaryFolder folder;
  folder.write("a/0.png", grey_png(1));
  folder.write("a/1.png", grey_png(2));
  folder.write("a/2.png", grey_png(1));
  const ClassFolder source(folder.path());
  Sample scratch;
  EXPECT_NE(source.check(0, scratch).checksum, source.check(1, scratch).checksum);
  EXPECT_EQ(source.check(0, scratch).checksum, source.check(2, scratch).checksum);
}

TEST(FactsTest, AStripIsAClip) {
  const TemporaryFolder folder;
  folder.write("a/0.png", grey_png(1, 8, 24));
  folder.write("a/1.png", grey_png(1, 8, 40));
  folder.write("a/2.png", grey_png(1, 8, 30));
  const StripSource clips(std::make_unique<ClassFolder>(folder.path()), 8.0F);
  const SampleFacts three{.height = 8, .width = 8, .num_frames = 3, .fps = 8.0F};
  EXPECT_EQ(clips.facts(0), three);
  Sample scratch;
  (void)clips.check(1, scratch);  // five frames; the next has another number
  SampleFacts checked = clips.check(0, scratch);
  checked.checksum = 0;
  EXPECT_EQ(checked, three);
  EXPECT_THAT(error_of([&] { (void)clips.facts(2); }), HasSubstr("a multiple of its height"));
}

TEST(FactsTest, AGeneratedSetKnowsByDrawing) {
  const ShapeSource source(0, 4, 16, 24);
  Sample sample;
  source.read(3, sample);
  EXPECT_EQ(source.facts(3),
            (SampleFacts{.height = 16, .width = 24, .caption_length = std::ssize(sample.caption)}));
  EXPECT_EQ(source.stamp(3), 0U);
}

TEST(FactsTest, StampsChangeWithTheFiles) {
  const TemporaryFolder folder;
  const auto path = folder.write("a/0.png", grey_png(1));
  folder.write("a/1.png", grey_png(1));
  const ClassFolder source(folder.path());
  const uint64_t before = source.stamp(0);
  EXPECT_EQ(source.stamp(0), before);
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(5));
  EXPECT_NE(source.stamp(0), before);
  std::filesystem::remove(path);
  EXPECT_EQ(source.stamp(0), 0U);
}

TEST(FactsTest, WhatIsNoSampleIsNamed) {
  const TemporaryFolder folder;
  folder.write("a/0.png", grey_png(1));
  folder.write("a/1.png", grey_png(1));
  folder.write("a/notes.doc", "x");
  folder.write("a/inner/2.png", grey_png(1));
  const ClassFolder source(folder.path());
  ASSERT_EQ(source.passed_over().size(), 2U);
  EXPECT_THAT(source.passed_over()[0].name, HasSubstr("a/notes.doc"));
  EXPECT_THAT(source.passed_over()[1].name, HasSubstr("a/inner"));
}

}  // namespace facts_test
}  // namespace kinora::data
