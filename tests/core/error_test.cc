#include "kinora/core/error.h"

#include <gtest/gtest.h>

namespace kinora {
namespace error_test {

TEST(ErrorTest, CheckStreamsItsPartsIntoTheMessage) {
  try {
    KINORA_CHECK(1 > 2, kShape, "[layer_norm] width must be ", 1152, ", got ", 10.5);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kShape);
    EXPECT_STREQ(error.what(), "[layer_norm] width must be 1152, got 10.5");
  }
}

TEST(ErrorTest, CheckLeavesPartsAloneWhileTheConditionHolds) {
  int evaluated = 0;
  KINORA_CHECK(true, kIo, ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(ErrorTest, UnreachableIsABug) {
  try {
    KINORA_UNREACHABLE("[x] no such case ", 3);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_STREQ(error.what(), "[x] no such case 3");
  }
}

TEST(ErrorTest, KindsHaveNames) {
  EXPECT_EQ(to_string(ErrorKind::kConfig), "config");
  EXPECT_EQ(to_string(ErrorKind::kShape), "shape");
  EXPECT_EQ(to_string(ErrorKind::kIo), "io");
  EXPECT_EQ(to_string(ErrorKind::kCuda), "cuda");
  EXPECT_EQ(to_string(ErrorKind::kComm), "comm");
  EXPECT_EQ(to_string(ErrorKind::kInternal), "internal");
}

}  // namespace error_test
}  // namespace kinora
