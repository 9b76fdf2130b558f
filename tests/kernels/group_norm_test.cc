#include "kinora/kernels/group_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/group_norm_case.h"

namespace kinora::kernels {
namespace group_norm_test {

void expect_near(const std::vector<uint8_t>& got, const std::vector<double>& want,
                 const char* what) {
  const std::vector<float> values = decode(got, DType::kF32);
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(values[i], want[i], 2e-6) << what << " " << i;
  }
}

TEST(GroupNormTest, EqualsTorch) {
  // y and gradients of torch's silu(group_norm(x + channel_bias + offset, 2, weight, bias, 1e-3))
  // in float64, channels last.
  GroupNormCase given({2, 3, 4, 2, DType::kF32}, DType::kF32, true, true);
  given.x =
      encode({0.5F,  -1.25F, 2.0F, 0.75F, 3.0F,  -0.5F, 0.25F, 1.5F,   -2.0F, 1.0F,  0.125F, -0.75F,
              1.75F, -3.0F,  0.5F, 2.5F,  -1.5F, 0.25F, 4.0F,  -0.25F, 0.0F,  1.25F, -2.25F, 1.0F},
             DType::kF32);
  given.dy =
      encode({1.0F,   -0.5F, 0.25F, 2.0F, -1.0F, 0.75F, 1.5F,   0.5F,  0.25F, -1.5F, 0.5F,  1.0F,
              -0.75F, 1.25F, -2.0F, 0.5F, 1.0F,  0.5F,  -0.25F, 0.75F, 2.0F,  -1.0F, 1.25F, -0.5F},
             DType::kF32);
  given.weight = encode({1.0F, 0.5F, -2.0F, 1.5F}, DType::kF32);
  given.bias = encode({0.25F, -0.5F, 0.0F, 1.0F}, DType::kF32);
  given.channel_bias = encode({0.5F, -0.25F, 1.0F, 0.0F}, DType::kF32);
  given.offset = encode({0.0F, 1.0F, -1.5F, 0.25F, 2.0F, -0.5F, 0.75F, 1.25F}, DType::kF32);
  given.epsilon = 1e-3;
  const GroupNormResults got = reference_results(given);
  expect_near(got.y,
              {0.243312222407,  -0.258956590683, -0.22767406945,  1.51910895029,   1.71870050351,
               -0.224020369185, 1.40011398797,   2.84820278144,   -0.276550675365, -0.0855859586268,
               1.69080897841,   -0.223677660666, 1.42548487123,   -0.277249634688, 0.0913653821249,
               1.77397782436,   0.228310442633,  -0.238086224373, -0.11195248676,  -0.0358905928084,
               0.71823262563,   -0.197225887237, 2.80302780855,   0.616303120236},
              "y");
  expect_near(got.dx, {0.531907317209,  -0.107833377435,  -1.14522121613,  2.88827500816,
                       -0.263768713628, 0.0488560045805,  -2.53749179521,  -0.616001164759,
                       -0.212439347605, 0.00327811687904, -0.115003716548, 1.52544288449,
                       -0.461063046127, -0.0778828865611, 1.18850874403,   0.166138383257,
                       0.163483453888,  -0.0834287648818, -0.607063864869, 0.483454074911,
                       0.616432160384,  -0.157540916703,  -0.902128927092, -0.328908410239},
              "dx");
  expect_near(got.dweight, {-1.46372728166, -0.355614764825, -3.75835353115, 1.77687238678},
              "dweight");
  expect_near(got.dbias, {1.35073501763, -0.708385987145, 2.32830463344, 3.33872764019}, "dbias");
  expect_near(got.dchannel_bias, {0.374551824121, -0.374551824121, -4.11840077582, 4.11840077582},
              "dchannel_bias");
  expect_near(got.doffset,
              {0.0556992559756, -0.0556992559756, -3.79771672789, 3.79771672789, 0.318852568146,
               -0.318852568146, -0.320684047929, 0.320684047929},
              "doffset");
}

TEST(GroupNormTest, StatisticsSayWhatYAndTheMeansAre) {
  const GroupNormCase given({2, 5, 6, 2, DType::kF32}, DType::kF32, false, true);
  const GroupNormResults got = reference_results(given);
  const std::vector<float> x = decode(given.x, DType::kF32);
  const std::vector<float> y = decode(got.y, DType::kF32);
  const std::vector<float> channel_bias = decode(given.channel_bias, DType::kF32);
  const std::vector<float> offset = decode(given.offset, DType::kF32);
  constexpr size_t kStride = 12;
  for (size_t i = 0; i < kStride; ++i) {  // image, channel
    const float term = channel_bias[i % 6] + offset[i];
    const float mean = got.factors[2 * kStride + i] + term;
    float channel_mean = 0.0F;
    for (size_t p = 0; p < 5; ++p) {
      const size_t at = (i / 6 * 5 + p) * 6 + i % 6;
      EXPECT_NEAR(y[at], x[at] * got.factors[i] + got.factors[kStride + i], 1e-5F);
      channel_mean += (x[at] + term) / 5.0F;
    }
    EXPECT_NEAR(got.factors[3 * kStride + i], channel_mean - mean, 1e-5F);
    EXPECT_NEAR(
        mean,
        got.factors[2 * kStride + i / 3 * 3] + channel_bias[i / 3 * 3 % 6] + offset[i / 3 * 3],
        1e-5F)
        << "one mean a group";
  }
}

TEST(GroupNormTest, GradientsEqualFiniteDifferences) {
  for (const bool silu : {false, true}) {
    GroupNormCase given({2, 4, 6, 3, DType::kF32}, DType::kF32, silu, true);
    const GroupNormResults got = reference_results(given);
    const auto loss = [&] {  // sum of dy * y
      const std::vector<float> y = decode(reference_results(given).y, DType::kF32);
      const std::vector<float> dy = decode(given.dy, DType::kF32);
      double sum = 0.0;
      for (size_t i = 0; i < y.size(); ++i) {
        sum += static_cast<double>(y[i]) * dy[i];
      }
      return sum;
    };
    const auto check = [&](std::vector<uint8_t>& input, const std::vector<uint8_t>& gradient,
                           const char* what) {
      const std::vector<float> derivatives = decode(gradient, DType::kF32);
      const std::vector<float> before = decode(input, DType::kF32);
      for (size_t i = 0; i < before.size(); ++i) {
        constexpr float kStep = 1.0F / 256;
        std::vector<float> moved = before;
        moved[i] = before[i] + kStep;
        input = encode(moved, DType::kF32);
        const double above = loss();
        moved[i] = before[i] - kStep;
        input = encode(moved, DType::kF32);
        const double below = loss();
        EXPECT_NEAR((above - below) / (2 * kStep), derivatives[i], 1e-3) << what << " " << i;
      }
      input = encode(before, DType::kF32);
    };
    check(given.x, got.dx, "dx");
    check(given.weight, got.dweight, "dweight");
    check(given.bias, got.dbias, "dbias");
    check(given.channel_bias, got.dchannel_bias, "dchannel_bias");
    check(given.offset, got.doffset, "doffset");
  }
}

}  // namespace group_norm_test
}  // namespace kinora::kernels
