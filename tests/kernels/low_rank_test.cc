#include "kinora/kernels/low_rank.h"

#include <gtest/gtest.h>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace low_rank_test {

// Small whole numbers, exact in every type.
TEST(LowRankTest, WritesLowAndTheFactorsBesideTheWeight) {
  const DType type = DType::kBF16;
  // Two rows of x [2, 2] with room for low, A [1, 2], B [3, 1]; W [3, 2] in joined [4, 3].
  std::vector<uint8_t> x = encode({1, 2, 0, 3, 4, 0}, type);
  const std::vector<uint8_t> a = encode({5, 6}, type);
  const std::vector<uint8_t> b = encode({1, 2, 3}, type);
  std::vector<uint8_t> joined = encode({9, 9, 0, 9, 9, 0, 9, 9, 0, 0, 0, 0}, type);
  low_rank_forward({.rows = 2,
                    .in = 2,
                    .out = 3,
                    .rank = 1,
                    .type = type,
                    .scale = 2.0F,
                    .x = x.data(),
                    .x_stride = 3,
                    .a = a.data(),
                    .b = b.data(),
                    .low = x.data() + 2 * size_of(type),
                    .low_stride = 3,
                    .behind = joined.data() + 2 * size_of(type),
                    .below = joined.data() + 9 * size_of(type),
                    .weight_stride = 3});
  EXPECT_EQ(decode(x, type), (std::vector<float>{1, 2, 17, 3, 4, 39}));
  EXPECT_EQ(decode(joined, type), (std::vector<float>{9, 9, 2, 9, 9, 4, 9, 9, 6, 5, 6, 0}));
}

TEST(LowRankTest, WritesWhatIsWanted) {
  const DType type = DType::kBF16;
  const std::vector<uint8_t> a = encode({5, 6}, type);
  const std::vector<uint8_t> b = encode({1, 2, 3}, type);
  std::vector<uint8_t> joined = encode({9, 9, 0, 9, 9, 0, 9, 9, 0, 0, 0, 0}, type);
  LowRankForward call{.rows = 2,
                      .in = 2,
                      .out = 3,
                      .rank = 1,
                      .type = type,
                      .a = a.data(),
                      .b = b.data(),
                      .below = joined.data() + 9 * size_of(type),
                      .weight_stride = 3};
  low_rank_forward(call);
  EXPECT_EQ(decode(joined, type), (std::vector<float>{9, 9, 0, 9, 9, 0, 9, 9, 0, 5, 6, 0}));
  call.below = nullptr;
  call.behind = joined.data() + 2 * size_of(type);
  low_rank_forward(call);
  EXPECT_EQ(decode(joined, type), (std::vector<float>{9, 9, 1, 9, 9, 2, 9, 9, 3, 5, 6, 0}));
}

TEST(LowRankTest, BackwardAddsTheGradientsOfBothFactors) {
  const DType type = DType::kF16;
  const std::vector<uint8_t> x = encode({1, 2, 3, 4}, type);   // [2, 2]
  const std::vector<uint8_t> low = encode({1, 3}, type);       // [2, 1]
  std::vector<uint8_t> dy = encode({1, 0, 7, 2, 1, 7}, type);  // [2, 2] with room
  const std::vector<uint8_t> b = encode({1, 2}, type);         // [2, 1]
  std::vector<float> a_grad = {100, 200};
  std::vector<float> b_grad = {10, 20};
  low_rank_backward({.rows = 2,
                     .in = 2,
                     .out = 2,
                     .rank = 1,
                     .type = type,
                     .scale = 2.0F,
                     .dy = dy.data(),
                     .dy_stride = 3,
                     .x = x.data(),
                     .x_stride = 2,
                     .low = low.data(),
                     .low_stride = 1,
                     .b = b.data(),
                     .dlow = dy.data() + 2 * size_of(type),
                     .dlow_stride = 3,
                     .a_grad = a_grad.data(),
                     .b_grad = b_grad.data()});
  EXPECT_EQ(decode(dy, type), (std::vector<float>{1, 0, 2, 2, 1, 8}));
  EXPECT_EQ(b_grad, (std::vector<float>{10 + 2 * 7, 20 + 2 * 3}));
  EXPECT_EQ(a_grad, (std::vector<float>{100 + 2 + 24, 200 + 4 + 32}));
}

}  // namespace low_rank_test
}  // namespace kinora::kernels
