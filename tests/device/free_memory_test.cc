#include "kinora/device/free_memory.h"

#include <gtest/gtest.h>

#include "kinora/core/error.h"

namespace kinora::device {
namespace free_memory_test {

TEST(FreeMemoryTest, ReadsBudgets) {
  EXPECT_EQ(budget_bytes("a", "none", 5), 0);
  EXPECT_EQ(budget_bytes("a", "auto", 5), 5);
  EXPECT_EQ(budget_bytes("a", "8GiB", 5), int64_t{8} << 30);
  EXPECT_EQ(budget_bytes("a", "1.5GiB", 5), int64_t{3} << 29);
  EXPECT_EQ(budget_bytes("a", "600MiB", 5), int64_t{600} << 20);
  for (const char* wrong : {"", "8", "8GB", "GiB", "-8GiB", "0GiB", "nanGiB", "1e300GiB"}) {
    EXPECT_THROW((void)budget_bytes("a", wrong, 5), Error) << wrong;
  }
}

}  // namespace free_memory_test
}  // namespace kinora::device
