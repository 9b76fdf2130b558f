#include "kinora/ops/fastest_way.h"

#include <gtest/gtest.h>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace fastest_way_test {

void never(size_t way) {
  FAIL() << "nothing to time, but way " << way << " was run";
}

TEST(FastestWay, TheOnlyPossibleWayNeedsNoTiming) {
  FastestWay ways(false);
  EXPECT_EQ(ways.choose({.m = 1}, {{"fused", true}, {"in steps", false}}, never), 0U);
  EXPECT_EQ(ways.choose({.m = 1}, {{"fused", false}, {"in steps", true}}, never), 1U)
      << "what was not timed is not remembered";
  EXPECT_EQ(ways.times({.m = 1}), "");
  EXPECT_TRUE(ways.report().empty());
}

TEST(FastestWay, DeterministicOnesAreNotTimed) {
  FastestWay ways(true);
  EXPECT_EQ(ways.choose({.m = 1}, {{"a", false}, {"b", true}, {"c", true}}, never), 1U);
  EXPECT_TRUE(ways.report().empty());
}

TEST(FastestWay, NoWayIsABug) {
  FastestWay ways(false);
  try {
    (void)ways.choose({.m = 1}, {{"fused", false}}, never);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
}

}  // namespace fastest_way_test
}  // namespace kinora::ops
