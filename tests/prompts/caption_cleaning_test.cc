#include "kinora/prompts/caption_cleaning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/text.h"
#include "kinora/prompts/fixed_text.h"
#include "kinora/prompts/html_text.h"
#include "tests/error_of.h"
#include "tests/prompts/records.h"

namespace kinora::prompts {
namespace caption_cleaning_test {

TEST(CaptionCleaningTest, IsThatOfDiffusers) {
  const nlohmann::json all = records("captions");
  ASSERT_GE(all.size(), 60U);
  for (const nlohmann::json& record : all) {
    const auto caption = record.at(0).get<std::string>();
    EXPECT_EQ(clean_caption(caption), record.at(1).get<std::string>()) << quote(caption);
    EXPECT_EQ(preprocess_caption(caption), record.at(2).get<std::string>()) << quote(caption);
  }
}

TEST(CaptionCleaningTest, TidyingIsThatOfDiffusersForWan) {
  const nlohmann::json all = records("tidied");
  ASSERT_GE(all.size(), 60U);
  for (const nlohmann::json& record : all) {
    const auto caption = record.at(0).get<std::string>();
    EXPECT_EQ(tidied_caption(caption), record.at(1).get<std::string>()) << quote(caption);
  }
}

TEST(CaptionCleaningTest, WithoutItOnlyTheCaseChanges) {
  EXPECT_EQ(preprocess_caption(" A (Red) Ball.jpg ", /*cleans=*/false), "a (red) ball.jpg");
}

TEST(CaptionCleaningTest, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(clean_caption("a\xff b"), "a\xEF\xBF\xBD b");
  EXPECT_EQ(clean_caption("a%FFb"), clean_caption("a\xff"
                                                  "b"));
}

TEST(CaptionCleaningTest, OfALongCaptionTheBeginningIsCleaned) {
  std::string words;
  while (words.size() < kMostCaptionBytes) {
    words += "tree ";
  }
  const std::string cleaned = clean_caption("Hill.jpg " + words + "A Lake.jpg");
  EXPECT_TRUE(cleaned.starts_with("tree tree")) << cleaned.substr(0, 40);
  EXPECT_TRUE(cleaned.ends_with("tree a lake.jpg")) << cleaned.substr(cleaned.size() - 40);
  // A word, and a character, without an end.
  const std::string word(3 * kMostCaptionBytes, 'a');
  EXPECT_EQ(clean_caption(word).size(), word.size() + 1);
  std::string umlauts = "a";
  for (size_t i = 0; i < kMostCaptionBytes; ++i) {
    umlauts += "\xC3\xA4";
  }
  EXPECT_THAT(preprocess_caption(umlauts), Not(testing::HasSubstr("\xEF\xBF\xBD")));
}

TEST(CaptionCleaningTest, TheWorstThatPatternsCanMeetTakesNotLong) {
  EXPECT_EQ(clean_caption(std::string(kMostCaptionBytes, '.')), "");
  EXPECT_EQ(clean_caption(std::string(kMostCaptionBytes, 'a')).size(), kMostCaptionBytes);
}

// Values of Python's html.unescape, and of the standard's examples.
TEST(HtmlTextTest, ReferencesAreWhatTheyStandFor) {
  EXPECT_EQ(unescape_html("&lt;&gt;&amp;&quot;&#39;"), "<>&\"'");
  EXPECT_EQ(unescape_html("I'm &notit; I tell you"), "I'm \xC2\xACit; I tell you");
  EXPECT_EQ(unescape_html("&notin; &#x80; &#0; &#xD800; &#1114112;"),
            "\xE2\x88\x89 \xE2\x82\xAC \xEF\xBF\xBD \xEF\xBF\xBD \xEF\xBF\xBD");
  EXPECT_EQ(unescape_html("& &; &# &#x; &nosuch; 1 & 2 &"), "& &; &# &#x; &nosuch; 1 & 2 &");
  EXPECT_EQ(unescape_html("&#99999999999999999999;"), "\xEF\xBF\xBD");
}

TEST(FixedTextTest, WhatIsLeftToFtfyStays) {
  EXPECT_EQ(fixed_text("caf\xC3\x83\xC2\xA9"), "caf\xC3\x83\xC2\xA9") << "mojibake";
  EXPECT_EQ(fixed_text("\xC2\x81 \xC2\x93\xC2\x85"), "\xC2\x81 \"\xE2\x80\xA6") << "Windows-1252";
  EXPECT_EQ(fixed_text("\x1b[31mred\x1b[0m\r\nnew"), "red\nnew");
}

}  // namespace caption_cleaning_test
}  // namespace kinora::prompts
