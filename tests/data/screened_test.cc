#include "kinora/data/screened.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>

#include "kinora/data/class_folder.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/loader.h"
#include "kinora/data/media_set.h"
#include "kinora/data/media_source.h"
#include "kinora/data/set_report.h"
#include "tests/data/files.h"
#include "tests/data/media_files.h"

namespace kinora::data {
namespace screened_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

namespace fs = std::filesystem;

// Pictures 0.png to 9.png, of which 3 and 7 are cut off behind their headers.
class ScreenedTest : public ::testing::Test {
 protected:
  ScreenedTest() {
    for (uint8_t i = 0; i < 10; ++i) {
      std::vector<std::byte> png = grey_png(i);
      if (i == 3 || i == 7) {
        png.resize(png.size() - 18);
      }
      folder_.write("set/a/" + std::to_string(i) + ".png", png);
    }
    (void)update_index(*open(), index_, {.full = true});
  }

  [[nodiscard]] std::unique_ptr<Source> open() const {
    return std::make_unique<ClassFolder>(folder_.path() / "set");
  }
  [[nodiscard]] std::string name(int number) const {
    return (folder_.path() / "set/a" / (std::to_string(number) + ".png")).string();
  }

  TemporaryFolder folder_;
  fs::path index_ = folder_.path() / "a.index";
  fs::path quarantine_ = folder_.path() / "quarantine.txt";
};

TEST_F(ScreenedTest, FactsOfAnIndexThatDropsNothing) {
  const auto source = with_known_facts(open(), Index::open(index_));
  fs::resize_file(name(2), 3);
  ASSERT_EQ(source->size(), 10);
  EXPECT_EQ(source->facts(2).height, 8);
  EXPECT_EQ(source->facts(3).height, 8);  // unusable, so its header is read
  fs::resize_file(name(3), 3);
  EXPECT_THAT(error_of([&] { return source->facts(3); }), HasSubstr(name(3)));
  EXPECT_EQ(source->sample_name(3), name(3));
}

TEST_F(ScreenedTest, WhatTheIndexRejectsIsLeftOut) {
  const auto source = screen(open(), {.index = index_, .max_bad = 2});
  ASSERT_EQ(source->size(), 8);
  EXPECT_THAT(contents(*source), ElementsAre("0 ", "1 ", "2 ", "4 ", "5 ", "6 ", "8 ", "9 "));
  EXPECT_EQ(source->sample_name(3), name(4));
}

TEST_F(ScreenedTest, KnownFactsAreNotReadAgain) {
  const auto source = screen(open(), {.index = index_});
  const auto source_of_all = open();
  fs::remove(name(0));
  EXPECT_EQ(source->facts(0).height, 8);
  EXPECT_THAT(error_of([&] { (void)source_of_all->facts(0); }), HasSubstr("0.png"));
}

TEST_F(ScreenedTest, TooManyUnusableSamplesRefuseToStart) {
  EXPECT_THAT(error_of([&] { (void)screen(open(), {.index = index_, .max_bad = 1}); }),
              AllOf(HasSubstr("at most 1 of 10"), HasSubstr("3.png"), HasSubstr("7.png")));
}

TEST_F(ScreenedTest, QuarantineIsAListOfNames) {
  write_quarantine(quarantine_, {{name(3), "cut\noff"}});
  EXPECT_THAT(read_quarantine(quarantine_), ElementsAre(Pair(name(3), "cut off")));
  // What is in quarantine does not count.
  EXPECT_EQ(screen(open(), {.quarantine = quarantine_, .index = index_, .max_bad = 1})->size(), 8);
  folder_.write("quarantine.txt", "# by hand\r\n" + name(0) + "\r\n\n" + name(9) + "\tblurred\n");
  EXPECT_EQ(screen(open(), {.quarantine = quarantine_})->size(), 8);
  EXPECT_THAT(error_of([&] {
                write_quarantine(quarantine_, {{"a\nb", "x"}});
              }),
              HasSubstr("must have a name without"));
}

TEST_F(ScreenedTest, FilesThatAreNamedMustBeThere) {
  EXPECT_THAT(error_of([&] { (void)screen(open(), {.index = folder_.path() / "none"}); }),
              HasSubstr("kinora data check"));
  EXPECT_THAT(error_of([&] { (void)screen(open(), {.quarantine = folder_.path() / "none"}); }),
              HasSubstr("none"));
}

TEST_F(ScreenedTest, RowsThatAManifestLostCount) {
  const fs::path manifest =
      folder_.write("set/m.csv", std::string("path\na/0.png\na/1.png\n\"\"\na/x.doc\n"));
  const auto source = [&] { return std::make_unique<MediaSource>(list_manifests({manifest}, {})); };
  EXPECT_THAT(error_of([&] { (void)screen(source(), {.max_bad = 1}); }),
              AllOf(HasSubstr("m.csv:4: a row without a path"), HasSubstr("m.csv:5")));
  EXPECT_EQ(screen(source(), {.max_bad = 2})->size(), 2);
}

// Every sample that the index does not reject comes once in an epoch, and nothing else does.
TEST_F(ScreenedTest, AnEpochIsTheIndexLessTheRejected) {
  const auto source = screen(open(), {.index = index_});
  std::multiset<std::string> expected;
  const Index index = Index::open(index_);
  for (int64_t i = 0; i < index.size(); ++i) {
    if (index.entry(i).is_usable()) {
      expected.emplace(index.name(i));
    }
  }
  LoaderOptions options;
  options.height = 8;
  options.width = 8;
  options.micro_batch = 4;
  options.global_batch = 4;
  options.num_threads = 2;
  Loader loader(*source, options);
  EpochOrder order(source->size(), options.seed);
  std::multiset<std::string> seen;
  std::multiset<int> values;
  for (int64_t position = 0; position < source->size(); position += 4) {
    const Batch batch = loader.next();
    for (int64_t i = 0; i < 4; ++i) {
      seen.insert(source->sample_name(order.at(position + i)));
      values.insert(batch.images.const_data_ptr<uint8_t>()[i * 3 * 64]);
    }
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(values, (std::multiset<int>{0, 1, 2, 4, 5, 6, 8, 9}));
}

TEST(SetReportTest, JsonIsPlainAsciiWhateverNamesHold) {
  SetReport report;
  report.beside.push_back({"a\x7f\xc2\x9b\xff.png", "odd"});
  EXPECT_THAT(to_json(report, {.global_batch = 4}), HasSubstr(R"("a\u007f\u009b\ufffd.png")"));
}

TEST_F(ScreenedTest, TheReportNamesAllThatIsRejected) {
  folder_.write("set/a/notes.md", std::string("x"));
  folder_.write("set/a/new.png", grey_png(77, 4, 6));
  const SetReport report = report_on(*open(), Index::open(index_), {{name(1), "x"}});
  EXPECT_EQ(report.num_samples, 11);
  EXPECT_EQ(report.num_usable, 7);
  EXPECT_EQ(report.num_unknown, 1);
  EXPECT_EQ(report.num_quarantined, 1);
  ASSERT_EQ(report.rejected.size(), 2U);
  EXPECT_EQ(report.rejected.begin()->first, name(3));
  ASSERT_EQ(report.beside.size(), 1U);
  EXPECT_EQ(report.sizes.at({8, 8, 1}), 7);
  std::ostringstream text;
  print(text, report, {.global_batch = 4, .num_held_out = 1}, 1);
  EXPECT_THAT(text.str(), AllOf(HasSubstr("usable 7"), HasSubstr("rejected 2"),
                                HasSubstr("and 1 more"), HasSubstr("notes.md"),
                                HasSubstr("4: 1 + 2  <- as configured"), HasSubstr("8: 0 + 6")));
  const std::string json = to_json(report, {.global_batch = 4});
  EXPECT_THAT(json, AllOf(HasSubstr("3.png"), HasSubstr("7.png"), HasSubstr("\"usable\": 7")));
}

}  // namespace screened_test
}  // namespace kinora::data
