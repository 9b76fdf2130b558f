#include "kinora/tokenizers/utf8.h"

#include <gtest/gtest.h>

#include "kinora/core/text.h"

namespace kinora::tokenizers {
namespace utf8_test {

const std::string kMark = "\xEF\xBF\xBD";

// Expected: bytes.decode(errors="replace") of Python 3.11.
TEST(Utf8Test, BrokenSequencesAreReplacedAsPythonReplacesThem) {
  EXPECT_EQ(replace_broken("a\xE2\x82z"), "a" + kMark + "z");
  EXPECT_EQ(replace_broken("\xF0\x80"), kMark + kMark);
  EXPECT_EQ(replace_broken("\xC0\xAF"), kMark + kMark);
  EXPECT_EQ(replace_broken("\xED\xA0\x80"), kMark + kMark + kMark);
  EXPECT_EQ(replace_broken("\xF0\x9F\x98"), kMark);
  EXPECT_EQ(replace_broken("\xE2\x28\xA1"), kMark + "(" + kMark);
  EXPECT_EQ(replace_broken("\xF4\x90\x80\x80"), kMark + kMark + kMark + kMark);
  EXPECT_EQ(replace_broken("\xFF\xC3\xA9\xC3"), kMark + "\xC3\xA9" + kMark);
}

TEST(Utf8Test, WholeTextStaysAndEveryPairOfBytesBecomesWhole) {
  const std::string text = "a\xC3\xA9\xE4\xBA\xBA\xF0\x9F\x98\x80";
  EXPECT_EQ(replace_broken(text), text);
  for (int i = 0; i < 1 << 16; ++i) {
    const std::string bytes = {static_cast<char>(i >> 8), static_cast<char>(i & 0xFF)};
    const std::string whole = replace_broken(bytes);
    ASSERT_TRUE(is_utf8(whole)) << i;
    ASSERT_EQ(whole == bytes, is_utf8(bytes)) << i;
  }
}

TEST(Utf8Test, CodePointsAreReadAndWritten) {
  std::string text;
  for (const char32_t point : {0x41, 0xE9, 0x4EBA, 0x1F600, 0x10FFFF}) {
    text.clear();
    append_utf8(text, point);
    EXPECT_EQ(code_point_at(text, 0).value, point);
    EXPECT_EQ(code_point_at(text, 0).size, text.size());
    EXPECT_EQ(last_character("x" + text), 1U);
  }
}

TEST(Utf8Test, KindsOfCharacters) {
  EXPECT_TRUE(is_whitespace(0x3000));
  EXPECT_TRUE(is_whitespace(0x85));
  EXPECT_FALSE(is_whitespace(0x180E)) << "no longer white space since Unicode 6.3";
  EXPECT_FALSE(is_whitespace(0x200B));
  EXPECT_TRUE(is_numeric(0xBD));
  EXPECT_TRUE(is_punctuation('$'));
  EXPECT_TRUE(is_punctuation(0x3002));
  EXPECT_FALSE(is_punctuation('5'));
  EXPECT_TRUE(is_word_character('_'));
  EXPECT_TRUE(is_word_character(0x301));
  EXPECT_FALSE(is_word_character('-'));
}

}  // namespace utf8_test
}  // namespace kinora::tokenizers
