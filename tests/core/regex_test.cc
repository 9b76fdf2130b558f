#include "kinora/core/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora {
namespace regex_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Dialect = Regex::Dialect;

std::vector<std::string> found(const std::string& expression, Dialect dialect,
                               const std::string& text) {
  std::vector<TextRange> matches;
  Regex(expression, dialect, "here").find(text, matches);
  std::vector<std::string> texts;
  for (const TextRange& match : matches) {
    texts.push_back(text.substr(match.begin, match.end - match.begin));
  }
  return texts;
}

// What Python 3.11's re.findall and Oniguruma 6.9's scan give.
TEST(RegexTest, DialectsDiffer) {
  EXPECT_THAT(found(R"(\w+)", Dialect::kPython, "a\u0301b \u4e00_1"),
              ElementsAre("a", "b", "\u4e00_1"));
  EXPECT_THAT(found(R"(\w+)", Dialect::kOniguruma, "a\u0301b \u4e00_1"),
              ElementsAre("a\u0301b", "\u4e00_1"));
  EXPECT_THAT(found("^.", Dialect::kPython, "ab\ncd"), ElementsAre("a"));
  EXPECT_THAT(found("^.", Dialect::kOniguruma, "ab\ncd"), ElementsAre("a", "c"));
  EXPECT_THAT(found("[a[]", Dialect::kPython, "b[a"), ElementsAre("[", "a"));
}

TEST(RegexTest, EmptyMatchesMoveOnByACharacter) {
  EXPECT_THAT(found("x*", Dialect::kOniguruma, "\u00e4xx"), ElementsAre("", "xx"));
  EXPECT_THAT(found("x*", Dialect::kOniguruma, "\u4e00\u4e00"), ElementsAre("", "", ""));
}

TEST(RegexTest, ReplacementsNameGroups) {
  const Regex pair(R"((\d+)x(\d+))", Dialect::kPython, "here");
  EXPECT_EQ(pair.replaced("3x4, 10x20", "$2 by $1, $$"), "4 by 3, $, 20 by 10, $");
  EXPECT_EQ(pair.replaced("none", "$1"), "none");
  const Regex character(".", Dialect::kPython, "here");
  EXPECT_EQ(character.replaced(std::string(1000, 'a'), "0123456789").size(), 10000U)
      << "more than was made room for";
}

TEST(RegexTest, ErrorsNameThePlaceAndTheExpression) {
  const auto refused = [](const std::string& expression, Dialect dialect) {
    return error_of(ErrorKind::kIo,
                    [&] { return Regex(expression, dialect, "file.json: pattern"); });
  };
  EXPECT_THAT(refused("(a", Dialect::kPython),
              AllOf(StartsWith("file.json: pattern: the regular expression \"(a\" cannot be used"),
                    HasSubstr("parenthesis")));
  EXPECT_THAT(refused("[a[b]]", Dialect::kOniguruma), HasSubstr("must not have [ or && within"));
  EXPECT_THAT(refused(R"([\S])", Dialect::kOniguruma), HasSubstr(R"(must not have \S within)"));
  EXPECT_THAT(refused(R"(\C)", Dialect::kPython), HasSubstr("cannot be used"));
  EXPECT_THAT(refused(std::string(70000, 'a'), Dialect::kPython),
              HasSubstr("at most 65536 bytes, got 70000"));
}

TEST(RegexTest, WhatTakesManyStepsEnds) {
  const Regex regex("(a+)+(a+)+b\\1", Dialect::kPython, "here");
  const std::string text = std::string(5000, 'a') + "bc";
  const auto few_steps =
      HasSubstr("searching 5002 bytes of text for \"(a+)+(a+)+b\\\\1\" must take few");
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return regex.replaced(text, ""); }), few_steps);
  std::vector<TextRange> matches;
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         regex.find(text, matches);
                         return 0;
                       }),
              few_steps);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return regex.replaced("a\xff", ""); }),
              HasSubstr("UTF-8"));
}

}  // namespace regex_test
}  // namespace kinora
