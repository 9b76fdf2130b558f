#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kinora/data/loader.h"
#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace captioned_folder_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

TEST(CaptionedFolderTest, CaptionsArePairedByName) {
  const TemporaryFolder folder;
  folder.write("b.png", grey_png(2));
  folder.write("b.txt", std::string("  two words\n"));
  folder.write("a.png", grey_png(1));
  folder.write("a.json", std::string(R"({"id": 7, "caption": "from JSON"})"));
  folder.write("in/a.v2.png", grey_png(3));
  folder.write("in/a.v2.txt", std::string("a dot in the name"));
  folder.write("in/a.v2.json", std::string("not read, since there is a text"));
  folder.write("in/none.webp", fixture("photo.jpg"));
  const MediaSource source(list_captioned_folder(folder.path()));
  const std::vector<std::string> found = contents(source);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0], "1 from JSON");
  EXPECT_EQ(found[1], "2 two words");
  EXPECT_EQ(found[2], "3 a dot in the name");
  EXPECT_TRUE(found[3].ends_with(" "));  // of the sample before it nothing is left
  EXPECT_THAT(source.class_names(), ElementsAre(""));
  EXPECT_THAT(passed_over(source, folder.path()), IsEmpty());
  EXPECT_EQ(source.facts(0), (SampleFacts{.height = 8, .width = 8, .caption_length = 9}));
}

// A folder that kinora sample drew into is a set of pictures (DreamBooth's class): its grid is
// none, but one of that name elsewhere is.
TEST(CaptionedFolderTest, TheGridOfSamplesIsLeftOut) {
  const TemporaryFolder folder;
  folder.write("class/grid.png", grey_png(1));
  folder.write("class/image-00000.png", grey_png(2));
  folder.write("photos/grid.png", grey_png(3));
  const MediaSource source(list_captioned_folder(folder.path()));
  EXPECT_THAT(contents(source), ElementsAre("2 ", "3 "));
  EXPECT_THAT(passed_over(source, folder.path()), ElementsAre(HasSubstr("class/grid.png")));
}

// What lies beside a picture belongs to it, is cropped and mirrored with it, and has its size.
TEST(CaptionedFolderTest, PicturesBesideBelongToTheirPicture) {
  const TemporaryFolder folder;
  for (const int grey : {1, 2, 3}) {
    folder.write(std::to_string(grey) + ".png", grey_png(static_cast<uint8_t>(grey)));
  }
  for (const int grey : {1, 2}) {
    folder.write(std::to_string(grey) + ".control.png", grey_png(static_cast<uint8_t>(10 * grey)));
    folder.write(std::to_string(grey) + ".before.png", grey_png(static_cast<uint8_t>(20 * grey)));
    folder.write(std::to_string(grey) + ".mask.png", grey_png(static_cast<uint8_t>(100 * grey)));
  }
  folder.write("alone.mask.png", grey_png(4));  // beside no picture
  const MediaSource plain(list_captioned_folder(folder.path()));
  EXPECT_THAT(contents(plain), ElementsAre("1 ", "2 ", "3 ", "4 "));
  EXPECT_FALSE(plain.beside().any_of_its_size());

  const PicturesBeside all{.control = true, .before = true, .mask = true};
  const MediaSource source(list_captioned_folder(folder.path(), all), {.beside = all});
  EXPECT_THAT(contents(source), ElementsAre("1 ", "2 "));
  EXPECT_THAT(passed_over(source, folder.path()),
              testing::Contains("3.png! a picture without NAME.control.png beside it "
                                "(data.control)"));
  const std::vector<int64_t> indices = {1, 0};
  const Batch batch = load_samples(source, indices, 4, 4);
  EXPECT_EQ(batch.control.sizes(), (std::vector<int64_t>{2, 3, 4, 4}));
  EXPECT_EQ(batch.before.sizes(), (std::vector<int64_t>{2, 3, 4, 4}));
  EXPECT_EQ(batch.mask.sizes(), (std::vector<int64_t>{2, 1, 4, 4}));
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t number = 2 - i;
    EXPECT_TRUE((batch.images[i] == number).all().item<bool>());
    EXPECT_TRUE((batch.control[i] == 10 * number).all().item<bool>());
    EXPECT_TRUE((batch.before[i] == 20 * number).all().item<bool>());
    EXPECT_TRUE((batch.mask[i] == 100 * number).all().item<bool>());
  }
}

// References are of any size, as many as there are, beside pictures and clips.
TEST(CaptionedFolderTest, ReferencesBelongToTheirSample) {
  const TemporaryFolder folder;
  for (const char* const name : {"1", "2", "3", "1.reference", "2.reference", "2.reference2",
                                 "3.reference", "3.reference2", "3.reference3"}) {
    folder.write(std::string(name) + ".png", grey_png(static_cast<uint8_t>(name[0] - '0')));
  }
  folder.write("2.reference2.png", fixture("photo.jpg"));
  folder.write("4.png", grey_png(4));
  folder.write("5.mp4", std::string("a clip"));
  folder.write("5.reference.png", grey_png(5));
  folder.write("6.reference.png", grey_png(6));  // beside nothing
  const PicturesBeside two{.references = 2};
  const MediaSet set = list_captioned_folder(folder.path(), two);
  ASSERT_EQ(set.items.size(), 5U);
  EXPECT_THAT(set.items[3].references, ElementsAre(HasSubstr("5.reference.png")));
  EXPECT_THAT(set.items[4].path, HasSubstr("6.reference.png"));
  const MediaSource source(list_captioned_folder(folder.path(), two), {.beside = two});
  EXPECT_THAT(passed_over(source, folder.path()),
              ElementsAre("3.png! a sample with more than data.references"));
  const std::vector<int64_t> indices = {1, 0, 2};
  const Batch batch = load_samples(source, indices, 4, 4);
  ASSERT_EQ(batch.references.sizes(), (std::vector<int64_t>{3, 3, 2, 4, 4}));
  EXPECT_TRUE(at::equal(batch.num_references, at::tensor({2, 1, 0}, at::kLong)));
  EXPECT_TRUE((batch.references[0].select(1, 0) == 2).all().item<bool>());
  EXPECT_TRUE((batch.references[1].select(1, 0) == 1).all().item<bool>());
  const TemporaryFolder photos;  // cropped as any picture
  photos.write("a.png", fixture("photo.jpg"));
  photos.write("b.png", fixture("photo.jpg"));
  const MediaSource plain(list_captioned_folder(photos.path()));
  EXPECT_TRUE(
      at::equal(batch.references[0].select(1, 1), load_samples(plain, {{0}}, 4, 4).images[0]));

  folder.write("1.reference.png", std::string("no picture"));
  Sample sample;
  EXPECT_THAT(error_of([&] { source.read(0, sample); }), HasSubstr("1.reference.png"));
  EXPECT_THAT(error_of([&] {
                const MediaSource none(list_captioned_folder(photos.path(), two), {.beside = two});
              }),
              HasSubstr("has a reference (data.references)"));
}

// A picture without a caption, and a caption without a picture, shift nothing.
TEST(CaptionedFolderTest, WhatIsMissingShiftsNothing) {
  const TemporaryFolder folder;
  folder.write("0.png", grey_png(10));
  folder.write("0.txt", std::string("ten"));
  folder.write("1.txt", std::string("the picture is gone"));
  folder.write("2.png", grey_png(12));
  folder.write("3.png", grey_png(13));
  folder.write("3.txt", std::string("thirteen"));
  folder.write("notes.md", std::string("x"));
  folder.write(".hidden/4.png", grey_png(14));
  fs::create_directory_symlink(folder.path(), folder.path() / "loop");
  const MediaSource source(list_captioned_folder(folder.path()));
  EXPECT_THAT(contents(source), ElementsAre("10 ten", "12 ", "13 thirteen"));
  EXPECT_THAT(passed_over(source, folder.path()),
              ElementsAre("loop: a link to a folder, which is not followed",
                          "notes.md: not a picture, clip or caption that Kinora reads",
                          "1.txt: a caption without a picture or clip"));
}

TEST(CaptionedFolderTest, BrokenCaptionsAreNamed) {
  const TemporaryFolder folder;
  folder.write("0.png", grey_png(10));
  folder.write("0.json", std::string("[1, 2"));
  folder.write("1.png", grey_png(11));
  folder.write("1.txt", std::string((1 << 20) + 1, 'x'));
  const MediaSource source(list_captioned_folder(folder.path()));
  Sample sample;
  EXPECT_THAT(error_of([&] { source.read(0, sample); }), HasSubstr("0.json"));
  EXPECT_THAT(error_of([&] { source.read(1, sample); }), HasSubstr("1.txt"));
  EXPECT_THAT(error_of([&] { (void)source.facts(1); }), HasSubstr("1.txt"));
}

TEST(CaptionedFolderTest, AnEmptySetNamesTheReasons) {
  const TemporaryFolder folder;
  folder.write("0.txt", std::string("x"));
  EXPECT_THAT(error_of([&] { const MediaSource source(list_captioned_folder(folder.path())); }),
              HasSubstr("a caption without a picture or clip: 1"));
  EXPECT_THAT(error_of([&] { (void)list_captioned_folder(folder.path() / "none"); }),
              HasSubstr("must be a folder"));
}

}  // namespace captioned_folder_test
}  // namespace kinora::data
