#include "kinora/core/text_table.h"

#include <gtest/gtest.h>

namespace kinora {
namespace text_table_test {

TEST(TextTableTest, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(text_table({{"a", "long name", "c"}, {"wide", "-", ""}}),
            "a     long name  c\n"
            "wide  -");
  EXPECT_EQ(text_table({}), "");
}

}  // namespace text_table_test
}  // namespace kinora
