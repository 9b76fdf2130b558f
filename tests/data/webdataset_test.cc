#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace webdataset_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(WebDatasetTest, EntriesArePairedByKey) {
  const TemporaryFolder folder;
  const auto first =
      folder.write("0.tar", tar({{"a/000.txt", bytes_of("zero")},
                                 {"a/001.png", grey_png(1)},
                                 {"a/000.png", grey_png(0)},
                                 {"a/001.json", bytes_of(R"({"caption": "one", "width": 8})")},
                                 {"a/001.cls", bytes_of("3\n")},
                                 {"a/000.cls", bytes_of("0")},
                                 {"a/000.seg.png", grey_png(50)},
                                 {"a/000.npy", bytes_of("x")}}));
  const auto second =
      folder.write("1.tar", tar({{"a/000.PNG", grey_png(7)}, {"a/000.cls", bytes_of("2")}}));
  const MediaSource source(list_webdataset({first, second}));
  EXPECT_THAT(contents(source), ElementsAre("0 zero", "1 one", "7 "));
  EXPECT_THAT(source.class_names(), ElementsAre("0", "1", "2", "3"));
  Sample sample;
  source.read(1, sample);
  EXPECT_EQ(sample.label, 3);
  EXPECT_THAT(source.sample_name(2), HasSubstr("1.tar:\"a/000.PNG\""));
  EXPECT_THAT(passed_over(source, folder.path()), IsEmpty());
  EXPECT_EQ(source.facts(1), (SampleFacts{.height = 8, .width = 8, .caption_length = 3}));
}

TEST(WebDatasetTest, WhatDoesNotMatchIsNamed) {
  const TemporaryFolder folder;
  const auto path = folder.write("0.tar", tar({{"0.png", grey_png(0)},
                                               {"0.cls", bytes_of("cat")},
                                               {"1.txt", bytes_of("the picture is missing")},
                                               {"2.png", grey_png(2)},
                                               {"2.jpg", fixture("photo.jpg")},
                                               {"2.cls", bytes_of("ant")},
                                               {"3.png", grey_png(3)},
                                               {"README.md", bytes_of("x")},
                                               {".4.png", bytes_of("hidden")},
                                               {"5.png", grey_png(5)},
                                               {"5.cls", bytes_of("")}}));
  const MediaSource source(list_webdataset({path}));
  EXPECT_THAT(contents(source), ElementsAre("0 ", "2 "));
  EXPECT_THAT(source.class_names(), ElementsAre("ant", "cat"));
  EXPECT_THAT(passed_over(source, folder.path()),
              ElementsAre("0.tar:\"2.jpg\": another picture or clip of the same key",
                          "0.tar:\"1.txt\": a caption or class without a picture or clip",
                          "0.tar:\"README.md\": not a picture or clip that Kinora reads",
                          "0.tar:\"5.png\"! a class of no or more than 256 bytes",
                          "0.tar:\"3.png\"! no class, where others have one"));
}

TEST(WebDatasetTest, AllBrokenArchivesAreNamed) {
  const TemporaryFolder folder;
  std::vector<std::byte> cut = tar({{"0.png", grey_png(0)}, {"1.png", grey_png(1)}});
  cut.resize(cut.size() / 2);
  const auto good = folder.write("good.tar", tar({{"0.png", grey_png(0)}}));
  const auto bad = folder.write("bad.tar", cut);
  const std::string message = error_of([&] {
    (void)list_webdataset({bad, good, folder.path() / "missing.tar"});
  });
  EXPECT_THAT(message, HasSubstr("bad.tar"));
  EXPECT_THAT(message, HasSubstr("missing.tar"));
}

}  // namespace webdataset_test
}  // namespace kinora::data
