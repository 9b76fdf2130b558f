#include "kinora/kernels/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numeric>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace rms_norm_test {

TEST(RmsNormTest, EqualsTorch) {
  // torch.nn.functional.rms_norm(x, (4,), weight, 1e-3) in float64 and its gradients.
  const double y[] = {0.3959348218231789,  -0.4949185272789736, -3.1674785745854313,
                      0.8908533491021526,  1.7642099587713287,  -0.1470174965642774,
                      -0.2940349931285548, 1.3231574690784966};
  const double dx[] = {0.663853407557581,   0.12207317931035241,  -0.9079997661782859,
                       2.1835845768059086,  -0.15908623931167565, 0.14902895368884378,
                       -1.7284613131925426, 0.6555443631655491};
  const double dweight[] = {-1.3682751369481498, 0.27439228243255753, 0.616461066669595,
                            1.628856955162369};
  const std::vector<float> x = {0.5F, -1.25F, 2.0F, 0.75F, 3.0F, -0.5F, 0.25F, 1.5F};
  const std::vector<float> dy = {1.0F, -0.5F, 0.25F, 2.0F, -1.0F, 0.75F, 1.5F, 0.5F};
  const std::vector<float> weight = {1.0F, 0.5F, -2.0F, 1.5F};
  std::vector<float> got(8);
  rms_norm_forward({.rows = 2,
                    .width = 4,
                    .epsilon = 1e-3F,
                    .type = DType::kF32,
                    .x = x.data(),
                    .weight = weight.data(),
                    .y = got.data()});
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(got[i], y[i], 1e-6);
  }
  std::vector<float> got_dweight(4, 1.0F);
  rms_norm_backward({.rows = 2,
                     .width = 4,
                     .epsilon = 1e-3F,
                     .type = DType::kF32,
                     .dy = dy.data(),
                     .x = x.data(),
                     .weight = weight.data(),
                     .dx = got.data(),
                     .dweight = got_dweight.data()});
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(got[i], dx[i], 1e-6);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(got_dweight[i], 1.0 + dweight[i], 1e-6);
  }
}

/// Gradients of a case whose pairs turn by so many angles; 0: they do not.
void expect_finite_differences(int64_t num_angles) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 6;
  constexpr int64_t kPositions = 2;
  const std::vector<float> x = random_values(kRows * kWidth, 1);
  const std::vector<float> dy = random_values(kRows * kWidth, 2);
  const std::vector<float> weight = random_values(kWidth, 3);
  std::vector<float> cosine;
  std::vector<float> sine;
  for (const float angle : random_values(kPositions * num_angles, 4)) {
    cosine.push_back(std::cos(angle));
    sine.push_back(std::sin(angle));
  }
  RowRotation rotation;
  if (num_angles > 0) {
    rotation = {cosine.data(), sine.data(), kPositions, num_angles};
  }
  // sum of dy * y in double, by complex numbers.
  const auto loss = [&](const std::vector<double>& at_x, const std::vector<double>& at_weight) {
    double sum = 0.0;
    for (size_t row = 0; row < kRows; ++row) {
      double squares = 0.0;
      for (size_t c = 0; c < kWidth; ++c) {
        squares += std::pow(at_x[row * kWidth + c], 2);
      }
      const auto normed = [&](size_t c) {
        return at_x[row * kWidth + c] * at_weight[c] / std::sqrt(squares / kWidth + 1e-6);
      };
      for (size_t c = 0; c < kWidth; c += 2) {
        std::complex<double> z(normed(c), normed(c + 1));
        if (num_angles > 0) {
          const auto angles = static_cast<size_t>(num_angles);
          const size_t place = row % kPositions * angles + c / 2 % angles;
          z *= std::complex<double>(cosine[place], sine[place]);
        }
        sum += dy[row * kWidth + c] * z.real() + dy[row * kWidth + c + 1] * z.imag();
      }
    }
    return sum;
  };
  std::vector<float> dx(x.size());
  std::vector<float> dweight(kWidth);
  rms_norm_backward({.rows = kRows,
                     .width = kWidth,
                     .type = DType::kF32,
                     .dy = dy.data(),
                     .x = x.data(),
                     .weight = weight.data(),
                     .rotation = rotation,
                     .dx = dx.data(),
                     .dweight = dweight.data()});
  const std::vector<double> exact_x(x.begin(), x.end());
  const std::vector<double> exact_weight(weight.begin(), weight.end());
  constexpr double kStep = 1e-6;
  const auto difference = [&](bool of_weight, size_t i) {
    double sum = 0.0;
    for (const double side : {1.0, -1.0}) {
      std::vector<double> moved_x = exact_x;
      std::vector<double> moved_weight = exact_weight;
      (of_weight ? moved_weight : moved_x)[i] += side * kStep;
      sum += side * loss(moved_x, moved_weight) / (2.0 * kStep);
    }
    return sum;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(dx[i], difference(false, i), 2e-6);
  }
  for (size_t c = 0; c < kWidth; ++c) {
    EXPECT_NEAR(dweight[c], difference(true, c), 2e-6);
  }
  // And what it is the gradient of.
  std::vector<float> y(x.size());
  rms_norm_forward({.rows = kRows,
                    .width = kWidth,
                    .type = DType::kF32,
                    .x = x.data(),
                    .weight = weight.data(),
                    .rotation = rotation,
                    .y = y.data()});
  EXPECT_NEAR(std::inner_product(y.begin(), y.end(), dy.begin(), 0.0), loss(exact_x, exact_weight),
              1e-5);
}

TEST(RmsNormTest, GradientsEqualFiniteDifferences) {
  expect_finite_differences(0);
}

TEST(RmsNormTest, TurnsPairs) {
  expect_finite_differences(1);  // heads of a pair, all alike
  expect_finite_differences(3);  // each in its own way
}

TEST(RmsNormTest, RowsMayLieApart) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 4;
  const std::vector<float> weight = random_values(kWidth, 3);
  // Each matrix alone, and as columns of a wider one.
  const auto apart = [](const std::vector<float>& matrix, int64_t stride) {
    std::vector<float> wide(static_cast<size_t>(kRows * stride), 7.0F);
    for (int64_t i = 0; i < kRows * kWidth; ++i) {
      wide[static_cast<size_t>(i / kWidth * stride + i % kWidth)] = matrix[static_cast<size_t>(i)];
    }
    return wide;
  };
  const std::vector<float> x = random_values(kRows * kWidth, 1);
  const std::vector<float> dy = random_values(kRows * kWidth, 2);
  const auto forward = [&](const std::vector<float>& from, int64_t x_stride, std::vector<float>& to,
                           int64_t y_stride) {
    rms_norm_forward({.rows = kRows,
                      .width = kWidth,
                      .type = DType::kF32,
                      .x = from.data(),
                      .x_stride = x_stride,
                      .weight = weight.data(),
                      .y = to.data(),
                      .y_stride = y_stride});
  };
  const auto backward = [&](const std::vector<float>& dy_rows, int64_t dy_stride,
                            const std::vector<float>& x_rows, int64_t x_stride,
                            std::vector<float>& to, int64_t dx_stride) {
    rms_norm_backward({.rows = kRows,
                       .width = kWidth,
                       .type = DType::kF32,
                       .dy = dy_rows.data(),
                       .dy_stride = dy_stride,
                       .x = x_rows.data(),
                       .x_stride = x_stride,
                       .weight = weight.data(),
                       .dx = to.data(),
                       .dx_stride = dx_stride});
  };
  std::vector<float> y(x.size());
  std::vector<float> dx(x.size());
  forward(x, 0, y, 0);
  backward(dy, 0, x, 0, dx, 0);
  std::vector<float> wide_y = apart(x, 6);
  std::vector<float> wide_dx = apart(x, 7);
  forward(apart(x, 5), 5, wide_y, 6);
  backward(apart(dy, 8), 8, apart(x, 5), 5, wide_dx, 7);
  EXPECT_EQ(wide_y, apart(y, 6));
  EXPECT_EQ(wide_dx, apart(dx, 7));
}

}  // namespace rms_norm_test
}  // namespace kinora::kernels
