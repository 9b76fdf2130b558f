#include "kinora/data/path_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"

namespace kinora::data {
namespace path_patterns_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As bash expands them.
TEST(PathPatternsTest, RangesAndChoices) {
  EXPECT_THAT(expand_braces("a.tar"), ElementsAre("a.tar"));
  EXPECT_THAT(expand_braces("{008..010}.tar"), ElementsAre("008.tar", "009.tar", "010.tar"));
  EXPECT_THAT(expand_braces("x{9..11}"), ElementsAre("x9", "x10", "x11"));
  EXPECT_THAT(expand_braces("{a,b}/{0..1}.tar"),
              ElementsAre("a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"));
}

TEST(PathPatternsTest, OtherBracesMeanThemselves) {
  EXPECT_THAT(expand_braces("a{b}c{"), ElementsAre("a{b}c{"));
  EXPECT_THAT(expand_braces("}{x..y}{}{1..2}"), ElementsAre("}{x..y}{}1", "}{x..y}{}2"));
}

TEST(PathPatternsTest, RefusesWhatIsTooMuch) {
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return expand_braces("{0..9999}{0..9999}"); }),
              HasSubstr("at most 1000000 paths"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return expand_braces("{0..99999999999}"); }),
              HasSubstr("at most 1000000 paths"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return expand_braces("{3..1}"); }),
              HasSubstr("must rise"));
}

}  // namespace path_patterns_test
}  // namespace kinora::data
