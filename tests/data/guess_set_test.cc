#include "kinora/data/guess_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace guess_set_test {

using ::testing::HasSubstr;

TEST(GuessSetTest, KnowsSetsByWhatTheyHold) {
  const TemporaryFolder folder;
  const auto kind = [&folder](const std::string& name) {
    return guess_set((folder.path() / name).string()).source;
  };
  folder.write("classes/a/1.png", grey_png(1));
  EXPECT_EQ(kind("classes"), SourceKind::kFolder);
  folder.write("captions/1.png", grey_png(1));
  EXPECT_EQ(kind("captions"), SourceKind::kCaptions);
  folder.write("deep/a/1.png", grey_png(1));
  folder.write("deep/a/1.txt", std::string("x"));
  EXPECT_EQ(kind("deep"), SourceKind::kCaptions);
  folder.write("hub/train/metadata.jsonl", std::string("{}"));
  EXPECT_EQ(kind("hub"), SourceKind::kImageFolder);
  folder.write("classes.tar", tar({{"a/1.png", grey_png(1)}}));
  EXPECT_EQ(kind("classes.tar"), SourceKind::kTar);
  folder.write("web-00.tar", tar({{"a/1.png", grey_png(1)}, {"a/1.txt", bytes_of("x")}}));
  EXPECT_EQ(kind("web-{00..09}.tar"), SourceKind::kWebDataset);
  for (const char* name : {"classes", "captions", "hub", "classes.tar", "web-00.tar"}) {
    EXPECT_THAT(layout_text(kind(name)), HasSubstr("data.source="));
  }
  EXPECT_EQ(kind("any.CSV"), SourceKind::kManifest);
  EXPECT_EQ(kind("any.safetensors"), SourceKind::kLatents);
  EXPECT_THAT(error_of([&] { (void)kind("any.zip"); }), HasSubstr("any.zip"));
}

}  // namespace guess_set_test
}  // namespace kinora::data
