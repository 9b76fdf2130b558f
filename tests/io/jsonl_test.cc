#include "kinora/io/jsonl.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kinora/io/file.h"
#include "tests/file_size_limit.h"
#include "tests/io/io_testing.h"

namespace kinora::io {
namespace jsonl_test {

using test::error_message;
using ::testing::HasSubstr;

std::string text_of(const std::filesystem::path& path) {
  return read_text(path, 1 << 20);
}

TEST(JsonlTest, WritesOneObjectALineInOrder) {
  const test::TemporaryFolder folder;
  {
    JsonlWriter writer(folder / "log.jsonl");
    writer.write(JsonObject().add("step", 1).add("loss", 0.5).add("name", "a\"b\n"));
    EXPECT_EQ(text_of(folder / "log.jsonl"),
              "{\"step\": 1, \"loss\": 0.5, \"name\": \"a\\\"b\\n\"}\n")
        << "a line is in the file as soon as it is written";
  }
  JsonlWriter writer(folder / "log.jsonl");  // appends
  writer.write(JsonObject().add("ok", true).add("big", int64_t{9007199254740993}));
  writer.write(JsonObject());
  EXPECT_THAT(text_of(folder / "log.jsonl"),
              ::testing::EndsWith("\n{\"ok\": true, \"big\": 9007199254740993}\n{}\n"));
}

TEST(JsonlTest, NumbersRoundTrip) {
  for (const double value :
       {0.1, 1.0, -0.0, 1e300, 5e-324, 1.0 / 3.0, 123456789012345678.0, 2.5e-8}) {
    const auto json = nlohmann::json::parse(JsonObject().add("x", value).text());
    ASSERT_TRUE(json["x"].is_number_float()) << value;
    EXPECT_EQ(json["x"].get<double>(), value);
    EXPECT_EQ(std::signbit(json["x"].get<double>()), std::signbit(value));
  }
  for (const float value : {0.1F, 3.4e38F, 1e-45F, 16777217.0F}) {
    const auto json = nlohmann::json::parse(JsonObject().add("x", value).text());
    EXPECT_EQ(static_cast<float>(json["x"].get<double>()), value);
  }
  EXPECT_EQ(JsonObject().add("x", 0.1F).text(), "{\"x\": 0.1}");
}

TEST(JsonlTest, NumbersThatAreNotFiniteBecomeStrings) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(JsonObject()
                .add("a", std::nan(""))
                .add("b", kInf)
                .add("c", -kInf)
                .add("d", -std::numeric_limits<float>::quiet_NaN())
                .text(),
            R"({"a": "nan", "b": "inf", "c": "-inf", "d": "nan"})");
}

TEST(JsonlTest, BrokenTextStillGivesValidJson) {
  const std::string text = JsonObject().add("caption", "a\xff\x01z").text();
  EXPECT_EQ(nlohmann::json::parse(text)["caption"], "a\xEF\xBF\xBD\x01z");
}

TEST(JsonlTest, TruncateDropsLaterStepsAndATornLine) {
  const test::TemporaryFolder folder;
  const auto path = folder / "log.jsonl";
  write_file_atomic(path,
                    std::string_view("{\"run\": \"a\"}\n{\"step\": 9}\n{\"step\": 10, \"x\": [1]}\n"
                                     "{\"step\": 11}\n{\"event\": \"saved\", \"step\": 12}\n"
                                     "{\"step\": 13, \"lo"));
  EXPECT_EQ(truncate_jsonl(path, 10).num_removed, 3);
  const std::string kept = "{\"run\": \"a\"}\n{\"step\": 9}\n{\"step\": 10, \"x\": [1]}\n";
  EXPECT_EQ(text_of(path), kept);
  EXPECT_EQ(truncate_jsonl(path, 10).num_removed, 0);
  EXPECT_EQ(text_of(path), kept);
}

TEST(JsonlTest, TruncateMendsTheEndOfAWholeLastLine) {
  const test::TemporaryFolder folder;
  const auto path = folder / "log.jsonl";
  write_file_atomic(path, std::string_view("{\"step\": 1}"));
  EXPECT_EQ(truncate_jsonl(path, 10).num_removed, 0);
  EXPECT_EQ(text_of(path), "{\"step\": 1}\n");
  write_file_atomic(path, std::string_view(""));
  EXPECT_EQ(truncate_jsonl(path, 10).num_removed, 0);
  EXPECT_EQ(truncate_jsonl(folder / "missing.jsonl", 10).num_removed, 0);
}

TEST(JsonlTest, TruncateSetsADamagedFileAsideAndKeepsItsGoodLines) {
  const test::TemporaryFolder folder;
  const auto path = folder / "log.jsonl";
  const std::string damaged =
      "{\"step\": 1}\n[2]\n{\"step\": 3}\n\x1b[31m\xff\n\n{\"step\": 4}\n{\"st";
  for (const char* aside : {"damaged-log.jsonl", "damaged-log.jsonl-2"}) {
    write_file_atomic(path, std::string_view(damaged));
    const Truncated done = truncate_jsonl(path, 3);
    EXPECT_EQ(done.num_damaged, 3);
    EXPECT_EQ(done.first_damaged, 2);
    EXPECT_EQ(done.num_removed, 2);
    EXPECT_EQ(done.set_aside, folder / aside);
    EXPECT_EQ(text_of(folder / aside), damaged);
    EXPECT_EQ(text_of(path), "{\"step\": 1}\n{\"step\": 3}\n");
  }
  EXPECT_TRUE(truncate_jsonl(path, 3).set_aside.empty());
}

TEST(JsonlTest, APipeIsNotWaitedFor) {
  const test::TemporaryFolder folder;
  const auto path = folder / "log.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)truncate_jsonl(path, 1); }),
              HasSubstr("must be a regular file"));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { JsonlWriter writer(path); }),
              HasSubstr("log.jsonl"));
}

TEST(JsonlTest, ALineThatDoesNotFitLeavesNothing) {
  const test::TemporaryFolder folder;
  const auto path = folder / "log.jsonl";
  JsonlWriter writer(path);
  writer.write(JsonObject().add("step", 1));
  const std::string first = text_of(path);
  {
    const FileSizeLimit limit(first.size() + 4);
    EXPECT_THAT(error_message(ErrorKind::kIo, [&] { writer.write(JsonObject().add("step", 2)); }),
                HasSubstr("cannot write"));
  }
  EXPECT_EQ(text_of(path), first);
  writer.write(JsonObject().add("step", 3));
  EXPECT_EQ(text_of(path), first + "{\"step\": 3}\n");
}

TEST(JsonlTest, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(error_message(ErrorKind::kIo, [] { JsonlWriter("/nonexistent/log.jsonl"); }),
              HasSubstr("/nonexistent/log.jsonl"));
}

}  // namespace jsonl_test
}  // namespace kinora::io
