#include "kinora/inference/class_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora::inference {
namespace class_words_test {

using testing::HasSubstr;

const std::vector<std::string> kNames = {"tench, Tinca tinca", "", "crane", "cat", "crane"};

TEST(ClassWordsTest, NamesAndSynonymsAreClasses) {
  EXPECT_EQ(class_of("tench, Tinca tinca", kNames), 0);
  EXPECT_EQ(class_of("tench", kNames), 0);
  EXPECT_EQ(class_of("Tinca tinca", kNames), 0);
  EXPECT_EQ(class_of("cat", kNames), 3);
}

TEST(ClassWordsTest, OfOneSynonymTheLastClassIsMeantAsInDiffusers) {
  EXPECT_EQ(class_of("crane", {"crane, bird", "crane, machine"}), 1);
}

TEST(ClassWordsTest, OthersAreRefusedWithTheNearest) {
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { (void)class_of("tenhc", kNames); }),
              HasSubstr("did you mean tench?"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { (void)class_of("an aeroplane", kNames); }),
              HasSubstr("they are tench, Tinca tinca, crane, cat, crane"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { (void)class_of("", kNames); }),
              HasSubstr("got \"\""));
}

}  // namespace class_words_test
}  // namespace kinora::inference
