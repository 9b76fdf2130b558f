#include "kinora/kernels/residual_sum.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace residual_sum_test {

TEST(ResidualSumTest, TheBiasIsOfAColumn) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<uint8_t> x = encode({1, 2, 3, 4, 5, 6}, type);
    const std::vector<uint8_t> y = encode({10, 20, 30, 40, 50, 60}, type);
    const std::vector<uint8_t> bias = encode({0.5F, -1, 2}, type);
    std::vector<uint8_t> out(x.size());
    residual_sum({.rows = 2,
                  .width = 3,
                  .type = type,
                  .x = x.data(),
                  .y = y.data(),
                  .bias = bias.data(),
                  .out = out.data()});
    EXPECT_EQ(decode(out, type), (std::vector<float>{11.5F, 21, 35, 44.5F, 54, 68}));
    residual_sum({.rows = 2,
                  .width = 3,
                  .type = type,
                  .x = x.data(),
                  .bias = bias.data(),
                  .out = out.data()});
    EXPECT_EQ(decode(out, type), (std::vector<float>{1.5F, 1, 5, 4.5F, 4, 8}));
  }
}

}  // namespace residual_sum_test
}  // namespace kinora::kernels
