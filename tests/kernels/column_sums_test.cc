#include "kinora/kernels/column_sums.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace column_sums_test {

TEST(ColumnSumsTest, AddsToWhatIsThereAndSkipsBetweenRows) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<uint8_t> in = encode({1, 2, 99, 3, 4, 99, 5, 6, 99}, type);
    std::vector<float> out = {10.0F, 20.0F};
    column_sums(
        {.rows = 3, .width = 2, .row_stride = 3, .type = type, .in = in.data(), .out = out.data()});
    EXPECT_EQ(out, (std::vector<float>{19.0F, 32.0F}));
  }
}

TEST(ColumnSumsTest, NanPropagatesInItsColumnOnly) {
  const std::vector<float> in = {1.0F, NAN, 2.0F, 3.0F};
  std::vector<float> out = {0.0F, 0.0F};
  column_sums({.rows = 2,
               .width = 2,
               .row_stride = 2,
               .type = DType::kF32,
               .in = in.data(),
               .out = out.data()});
  EXPECT_EQ(out[0], 3.0F);
  EXPECT_TRUE(std::isnan(out[1]));
}

}  // namespace column_sums_test
}  // namespace kinora::kernels
