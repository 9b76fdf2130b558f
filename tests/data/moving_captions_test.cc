#include "kinora/data/moving_captions.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/tokenizers/tokenizer.h"
#include "tests/places.h"

namespace kinora::data {
namespace moving_captions_test {

const MovingContent kExample{Shape::kCircle, Colour::kRed, Motion::kLeft};

TEST(MovingCaptionsTest, OneContentHasManyWordings) {
  std::set<std::string> captions;
  std::set<std::string> first_words;
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string text = caption(kExample, {1, i, 0, RandomPurpose::kTest});
    EXPECT_EQ(moving_content_of(text), kExample) << text;
    captions.insert(text);
    first_words.insert(text.substr(0, text.find(' ')));
  }
  EXPECT_GT(captions.size(), 400U);
  EXPECT_THAT(first_words,
              testing::UnorderedElementsAre("a", "one", "there", "moving", "going", "gliding"));
  EXPECT_TRUE(captions.contains("a red circle moving to the left"));
  EXPECT_TRUE(captions.contains("gliding leftwards is one disc in crimson"));
  EXPECT_TRUE(captions.contains("there is a crimson circle which is going left"));
}

TEST(MovingCaptionsTest, AreReadAsPeopleReadThem) {
  for (const char* text : {"a red circle moving to the left", "Moving left: a CIRCLE, in red!",
                           "the crimson disc is going leftwards", "red circle gliding left"}) {
    EXPECT_EQ(moving_content_of(text), kExample) << text;
  }
  EXPECT_EQ(moving_content_of("an azure box moving down"),
            (MovingContent{Shape::kSquare, Colour::kBlue, Motion::kDown}));
  for (const char* text :
       {"", "a cat", "a red circle", "a circle moving left", "red moving left",
        "a red circle to the left", "a red blue circle moving left", "red red circle moving left",
        "a red circle moving left and up", "a red circle moving up left",
        "a red circle moving slowly left", "a small red circle moving left"}) {
    EXPECT_FALSE(moving_content_of(text).has_value()) << text;
  }
}

// A piece for each word, so that recipes can count on the length.
TEST(MovingCaptionsTest, ShippedTokenizerKnowsEveryWord) {
  const tokenizers::Tokenizer tokenizer =
      tokenizers::Tokenizer::load(source_path("configs/captions/spiece.model"));
  size_t longest = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const std::string text = moving_caption(5, i);
    const size_t words = 1 + static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
    const size_t tokens = tokenizer.encode(text).ids.size();
    EXPECT_EQ(tokens, words + 1) << text;  // the last one ends the text
    longest = std::max(longest, tokens);
  }
  EXPECT_LE(longest, 16U);
}

}  // namespace moving_captions_test
}  // namespace kinora::data
