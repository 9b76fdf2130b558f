#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace manifest_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    folder_.write("outside.png", grey_png(99));
    for (uint8_t i = 1; i <= 3; ++i) {
      folder_.write("set/p/" + std::to_string(i) + ".png", grey_png(i));
    }
  }

  [[nodiscard]] MediaSource open(const std::string& name, const std::string& text,
                                 bool allow_outside = false) const {
    return MediaSource(list_manifests({folder_.write("set/" + name, text)}, {allow_outside}));
  }
  [[nodiscard]] std::vector<std::string> passed(const MediaSource& source) const {
    return passed_over(source, (folder_.path() / "set").string());
  }

  TemporaryFolder folder_;
};

TEST_F(ManifestTest, RowsOfCsv) {
  const MediaSource source = open("m.csv",
                                  "\xef\xbb\xbf"
                                  "path,id,text\r\n"
                                  "p/2.png,0,\"a \"\"red\"\" cat,\r\non a mat\"\r\n"
                                  "./p/../p/1.png,1,\r\n");
  EXPECT_THAT(contents(source), ElementsAre("2 a \"red\" cat,\r\non a mat", "1 "));
  EXPECT_THAT(source.sample_name(1), HasSubstr("set/p/1.png"));
  EXPECT_THAT(passed(source), IsEmpty());
}

TEST_F(ManifestTest, RowsOfJsonLines) {
  const MediaSource source = open("m.jsonl",
                                  "{\"file_name\": \"p/3.png\", \"caption\": \"three\", "
                                  "\"label\": 2}\n\n"
                                  "{\"file_name\": \"p/1.png\", \"caption\": null, \"label\": 0}");
  EXPECT_THAT(contents(source), ElementsAre("3 three", "1 "));
  EXPECT_THAT(source.class_names(), ElementsAre("0", "1", "2"));
  Sample sample;
  source.read(0, sample);
  EXPECT_EQ(sample.label, 2);
}

TEST_F(ManifestTest, ReferencesAreAListOrOneALine) {
  const auto listed = [this](const std::string& name, const std::string& text) {
    return list_manifests({folder_.write("set/" + name, text)}, {.references = 2});
  };
  const MediaSet lines =
      listed("m.jsonl", R"({"path": "p/1.png", "reference": ["p/2.png", "p/3.png"]})"
                        "\n"
                        R"({"path": "p/2.png", "reference": "p/1.png"})"
                        "\n"
                        R"({"path": "p/3.png"})"
                        "\n"
                        R"({"path": "p/3.png", "reference": ["../outside.png"]})"
                        "\n"
                        R"({"path": "p/3.png", "reference": ["a", "b", "c"]})");
  ASSERT_EQ(lines.items.size(), 3U);
  EXPECT_THAT(lines.items[0].references,
              ElementsAre(HasSubstr("set/p/2.png"), HasSubstr("set/p/3.png")));
  EXPECT_THAT(lines.items[1].references, ElementsAre(HasSubstr("set/p/1.png")));
  EXPECT_THAT(lines.items[2].references, IsEmpty());
  ASSERT_EQ(lines.passed_over.size(), 2U);
  EXPECT_THAT(lines.passed_over[0].cause, HasSubstr("a reference that leads out"));
  EXPECT_THAT(lines.passed_over[1].cause, HasSubstr("more than data.references"));
  MediaSet csv =
      listed("m.csv", "path,reference\np/1.png,\"p/2.png\np/3.png\"\np/2.png,p/none.png\n");
  ASSERT_EQ(csv.items.size(), 2U);
  EXPECT_EQ(csv.items[0].references.size(), 2U);
  const MediaSource source(std::move(csv), {.beside = {.references = 2}});
  Sample sample;
  EXPECT_THAT(error_of([&] { source.read(1, sample); }), HasSubstr("p/none.png"));
}

// The columns that Open-Sora's tools write.
TEST_F(ManifestTest, ColumnsOfOpenSora) {
  const MediaSet set = list_manifests(
      {folder_.write("set/v.csv",
                     "path,text,num_frames,height,width,aspect_ratio,fps,resolution\n"
                     "p/1.mp4,a,102,480,854,0.56,30.0,409920\n"
                     "p/2.mp4,b,,480,854,0.56,nan,409920\n")},
      {});
  ASSERT_EQ(set.items.size(), 2U);
  EXPECT_TRUE(set.items[0].is_video);
  EXPECT_EQ(set.items[0].num_frames, 102);
  EXPECT_EQ(set.items[0].fps, 30.0F);
  EXPECT_EQ(set.items[1].num_frames, 0);
  EXPECT_EQ(set.items[1].fps, 0.0F);
}

TEST_F(ManifestTest, BadRowsAreNamedAndShiftNothing) {
  const MediaSource source = open("m.csv",
                                  "path,text\n"
                                  "p/1.png,one\n"
                                  "p/2.png\n"
                                  ",two\n"
                                  "p/2.doc,two\n"
                                  "https://a.b/c.png,two\n"
                                  "../outside.png,two\n" +
                                      (folder_.path() / "outside.png").string() +
                                      ",two\n"
                                      "p/3.png,three\n");
  EXPECT_THAT(contents(source), ElementsAre("1 one", "3 three"));
  EXPECT_THAT(
      passed(source),
      ElementsAre("m.csv:3! a row with more or fewer fields than the first",
                  "m.csv:4! a row without a path",
                  "m.csv:5! not a picture or clip that Kinora reads",
                  "m.csv:6! an address in the net, not a file",
                  "m.csv:7! a path that leads out of the manifest's folder (data.allow_outside)",
                  "m.csv:8! a path that leads out of the manifest's folder (data.allow_outside)"));
}

TEST_F(ManifestTest, PathsMayLeadOutsideWhereThatIsAllowed) {
  const std::string rows =
      "path,text\n../outside.png,a\n" + (folder_.path() / "set/p/1.png").string() + ",b\n";
  EXPECT_THAT(contents(open("m.csv", rows, true)), ElementsAre("99 a", "1 b"));
}

TEST_F(ManifestTest, LinksThatLeadOutsideAreRefused) {
  fs::create_symlink(folder_.path() / "outside.png", folder_.path() / "set/p/link.png");
  fs::create_symlink("1.png", folder_.path() / "set/p/inner.png");
  const std::string rows = "path\np/link.png\np/inner.png\n";
  const MediaSource source = open("m.csv", rows);
  Sample sample;
  EXPECT_THAT(error_of([&] { source.read(0, sample); }), HasSubstr("a link to"));
  EXPECT_THAT(error_of([&] { (void)source.facts(0); }), HasSubstr("a link to"));
  source.read(1, sample);
  EXPECT_THAT(contents(open("m.csv", rows, true)), ElementsAre("99 ", "1 "));
}

TEST_F(ManifestTest, WhatIsNoManifestIsRefused) {
  EXPECT_THAT(error_of([&] { (void)open("m.csv", ""); }), HasSubstr("an empty file"));
  EXPECT_THAT(error_of([&] { (void)open("m.csv", "a,b\n1,2\n"); }),
              HasSubstr("must have a column path"));
  EXPECT_THAT(error_of([&] { (void)open("m.tsv", "path\n"); }), HasSubstr("must end in"));
  EXPECT_THAT(error_of([&] { (void)open("m.jsonl", "{\"path\": \"p/1.png\"}\nnonsense\n"); }),
              HasSubstr("a line that is no JSON object: 1"));
  EXPECT_THAT(error_of([&] { (void)open("m.csv", "path\n\"p/1.png\n"); }), HasSubstr("m.csv:2"));
}

TEST_F(ManifestTest, AMissingFileIsFoundWhenItIsRead) {
  const MediaSource source = open("m.csv", "path\np/1.png\np/9.png\n");
  EXPECT_THAT(error_of([&] { (void)source.facts(1); }), HasSubstr("p/9.png"));
}

}  // namespace manifest_test
}  // namespace kinora::data
