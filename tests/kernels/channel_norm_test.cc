#include "kinora/kernels/channel_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace channel_norm_test {

TEST(ChannelNormTest, MomentsAreOfEachImageAndChannel) {
  // two images of three places of two channels
  const std::vector<float> values = {1, -1, 2, -2, 3, -3, 0, 5, 0, 6, 4, 7};
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<uint8_t> in = encode(values, type);
    std::vector<double> out(8);
    channel_moments(
        {.batch = 2, .places = 3, .channels = 2, .type = type, .in = in.data(), .out = out.data()});
    EXPECT_EQ(out, (std::vector<double>{6, -6, 4, 18, 14, 14, 16, 110}));
  }
}

TEST(ChannelNormTest, EveryImageAndChannelHasItsFactor) {
  const std::vector<float> in = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> scale = {1, -1, 0.5F, 2};
  const std::vector<float> shift = {0, 1, 0, -3};
  const std::vector<float> sums = {1, -1, 3, -3, 2.5F, 9, 3.5F, 13};
  for (const bool silu : {false, true}) {
    std::vector<float> out(8);
    channel_affine({.batch = 2,
                    .places = 2,
                    .channels = 2,
                    .type = DType::kF32,
                    .in = in.data(),
                    .scale = scale.data(),
                    .shift = shift.data(),
                    .silu = silu,
                    .out = out.data()});
    for (size_t i = 0; i < sums.size(); ++i) {
      const float expected = silu ? sums[i] * (1.0F / (1.0F + std::exp(-sums[i]))) : sums[i];
      EXPECT_NEAR(out[i], expected, 1e-6F);
    }
  }
}

TEST(ChannelNormTest, EdgesComeAgain) {
  // Two clips of two frames, one row and three columns, of one channel.
  const std::vector<float> in = {1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6};
  const std::vector<float> scale = {10, 1};
  const std::vector<float> shift = {0, 0.5F};
  ChannelAffine call = {.batch = 2,
                        .places = 6,
                        .channels = 1,
                        .type = DType::kF32,
                        .in = in.data(),
                        .scale = scale.data(),
                        .shift = shift.data(),
                        .edges = {{2, 1, 3}, {2, 1, 0}, {0, 0, 1}}};
  std::vector<float> out(static_cast<size_t>(2 * call.edges.out_places()));
  call.out = out.data();
  channel_affine(call);
  std::vector<float> want;
  for (const auto& [clip, factor, term] : {std::tuple(0, 10.0F, 0.0F), std::tuple(6, 1.0F, 0.5F)}) {
    for (const int frame : {0, 0, 0, 1}) {
      for (const int row : {0, 0}) {
        for (const int column : {0, 1, 2, 2}) {
          want.push_back(in[static_cast<size_t>(clip + 3 * (frame + row) + column)] * factor +
                         term);
        }
      }
    }
  }
  EXPECT_EQ(out, want);
}

TEST(ChannelNormTest, PlacesComeTwiceAndEdgesOfAWindowAgain) {
  // Two clips of two frames, one row and three columns, of one channel.
  const std::vector<float> in = {1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6};
  ChannelRepeat call = {
      .batch = 2, .channels = 1, .type = DType::kF32, .in = in.data(), .edges = {}};
  call.edges = {.sizes = {2, 1, 3},
                .before = {2, 0, 0},
                .after = {0, 0, 1},
                .doublings = {1, 1, 0},
                .left_out = {{1, 0}, {0, 1}, {1, 0}}};
  std::vector<float> out(static_cast<size_t>(2 * call.edges.out_places()));
  call.out = out.data();
  channel_repeat(call);
  std::vector<float> want;
  for (const int clip : {0, 6}) {
    for (const int frame : {0, 0, 0, 1, 1}) {  // two of them edges
      for (const int column : {1, 2, 2}) {
        want.push_back(in[static_cast<size_t>(clip + 3 * frame + column)]);
      }
    }
  }
  EXPECT_EQ(out, want);
}

TEST(ChannelNormTest, PhasesBecomePlaces) {
  // A clip of two frames, one row and two columns, of one channel, whose frames become two but for
  // the first: what is at (t, i, j) of phase k is 1000 t + 100 i + 10 j + k.
  std::vector<float> in;
  for (const int t : {0, 1}) {
    for (const int i : {0, 1}) {
      for (const int j : {0, 1, 2}) {
        for (int k = 0; k < 8; ++k) {
          in.push_back(static_cast<float>(1000 * t + 100 * i + 10 * j + k));
        }
      }
    }
  }
  const float bias = 0.5F;
  std::vector<float> out(3 * 2 * 4);
  channel_phases({.batch = 1,
                  .channels = 1,
                  .frames = 2,
                  .rows = 1,
                  .columns = 2,
                  .times = 2,
                  .left_out = 1,
                  .type = DType::kF32,
                  .in = in.data(),
                  .bias = &bias,
                  .out = out.data()});
  const std::vector<float> want = {4,    15,   14,   25,   106,  117,  116,  127,
                                   1000, 1011, 1010, 1021, 1102, 1113, 1112, 1123,
                                   1004, 1015, 1014, 1025, 1106, 1117, 1116, 1127};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(out[i], want[i] + bias) << i;
  }
}

// Two images of two groups of two channels, against the mean and variance of their values.
TEST(ChannelNormTest, GroupsBecomeFactorsAndTerms) {
  const std::vector<double> sums = {6, -4, 0, 8, 14, 10, 16, 40};  // of three values each
  const std::vector<float> weight = {1, 2, -1, 0.5F};
  const std::vector<float> bias = {0, 1, 2, 3};
  std::vector<float> scale(8);
  std::vector<float> shift(8);
  group_affine({.batch = 2,
                .channels = 4,
                .groups = 2,
                .elements = 3,
                .epsilon = 0.25,
                .weight = weight.data(),
                .bias = bias.data(),
                .sums = sums.data(),
                .scale = scale.data(),
                .shift = shift.data()});
  for (size_t i = 0; i < scale.size(); ++i) {
    const size_t group = i / 2;
    const double mean = sums[group] / 3.0;
    const double rstd = 1.0 / std::sqrt(sums[4 + group] / 3.0 - mean * mean + 0.25);
    EXPECT_NEAR(scale[i], rstd * weight[i % 4], 1e-6) << i;
    EXPECT_NEAR(shift[i], bias[i % 4] - mean * rstd * weight[i % 4], 1e-6) << i;
  }
}

// Two images of two places of three channels, the second of which starts after a free place.
TEST(ChannelNormTest, ChannelsOfAPlaceAreDividedByTheirLength) {
  const std::vector<float> in = {3, 0, -4, 0, 0, 0, 1, 2, 2, 1e-6F, 0, 0};
  const std::vector<float> weight = {1, -1, 0.5F};
  for (const bool silu : {false, true}) {
    std::vector<float> out(15, 9.0F);
    channel_rms({.batch = 2,
                 .places = 2,
                 .channels = 3,
                 .type = DType::kF32,
                 .in = in.data(),
                 .weight = weight.data(),
                 .factor = 3.0F,
                 .least = 1e-3F,
                 .silu = silu,
                 .out = out.data(),
                 .out_places = 3});
    const std::vector<float> plain = {1.8F, 0, -1.2F, 0, 0, 0, 9, 9, 9, 1, -2, 1, 3e-3F, 0, 0};
    for (size_t i = 0; i < out.size(); ++i) {
      const bool is_free = i >= 6 && i < 9;
      EXPECT_NEAR(out[i], silu && !is_free ? plain[i] / (1.0F + std::exp(-plain[i])) : plain[i],
                  1e-6F)
          << i;
    }
  }
}

}  // namespace channel_norm_test
}  // namespace kinora::kernels
