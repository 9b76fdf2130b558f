#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace image_folder_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ImageFolderTest, MetadataOfTheTrainingSplit) {
  const TemporaryFolder folder;
  folder.write("train/a/1.png", grey_png(1));
  folder.write("train/2.png", grey_png(2));
  folder.write("train/3.png", grey_png(3));
  folder.write("train/metadata.csv",
               std::string("file_name,text\n2.png,two\na/1.png,one\n../test/9.png,nine\n"));
  folder.write("test/9.png", grey_png(9));
  const MediaSource source(list_image_folder(folder.path()));
  EXPECT_THAT(contents(source), ElementsAre("2 two", "1 one"));
  EXPECT_THAT(passed_over(source, folder.path()),
              ElementsAre("train/metadata.csv:4! a path that leads out of the manifest's folder "
                          "(data.allow_outside)",
                          "train/3.png: a picture or clip that the metadata do not name",
                          "test: another split than the training one"));
}

TEST(ImageFolderTest, MetadataAboveTheSplits) {
  const TemporaryFolder folder;
  folder.write("train/1.png", grey_png(1));
  folder.write("train/2.png", grey_png(2));
  folder.write("metadata.jsonl", std::string("{\"file_name\": \"train/2.png\", \"text\": \"b\"}\n"
                                             "{\"file_name\": \"train/1.png\", \"text\": \"a\"}"));
  const MediaSource source(list_image_folder(folder.path()));
  EXPECT_THAT(contents(source), ElementsAre("2 b", "1 a"));
  EXPECT_THAT(passed_over(source, folder.path()), IsEmpty());
}

TEST(ImageFolderTest, ClassFolders) {
  const TemporaryFolder folder;
  folder.write("train/dog/1.png", grey_png(1));
  folder.write("train/more/cat/2.png", grey_png(2));
  folder.write("train/dog/x.txt", std::string("x"));
  const MediaSource source(list_image_folder(folder.path()));
  EXPECT_THAT(source.class_names(), ElementsAre("cat", "dog"));
  Sample sample;
  source.read(0, sample);
  EXPECT_EQ(sample.label, 1);
  EXPECT_THAT(passed_over(source, folder.path()),
              ElementsAre("train/dog/x.txt: not a picture or clip that Kinora reads"));
}

TEST(ImageFolderTest, PicturesWithoutClasses) {
  const TemporaryFolder folder;
  folder.write("1.png", grey_png(1));
  folder.write("2.png", grey_png(2));
  const MediaSource source(list_image_folder(folder.path()));
  EXPECT_THAT(source.class_names(), ElementsAre(""));
}

}  // namespace image_folder_test
}  // namespace kinora::data
