#include "kinora/diffusion/brownian.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace kinora::diffusion {
namespace brownian_test {

constexpr double kEnd = 16.0;

/// The expectation of the product of two increments, whose shares are independent normals.
double covariance(const std::vector<NoiseShare>& a, const std::vector<NoiseShare>& b) {
  std::map<uint32_t, double> weights;
  for (const NoiseShare& share : a) {
    weights[share.number] = share.weight;
  }
  double sum = 0.0;
  for (const NoiseShare& share : b) {
    const auto found = weights.find(share.number);
    sum += found == weights.end() ? 0.0 : found->second * share.weight;
  }
  return sum;
}

TEST(BrownianTest, IncrementsCorrelateByWhatTheyShare) {
  const double points[] = {16.0, 14.6146, 9.3, 8.0, 3.7, 1.25, 0.4, 0.029, 0.0};
  for (const double a : points) {
    for (const double b : points) {
      for (const double c : points) {
        for (const double d : points) {
          if (a <= b || c <= d) {
            continue;
          }
          const double shared = std::max(0.0, std::min(a, c) - std::max(b, d));
          EXPECT_NEAR(covariance(brownian_increment(a, b, kEnd), brownian_increment(c, d, kEnd)),
                      shared / std::sqrt((a - b) * (c - d)), 2e-5)
              << a << " to " << b << ", " << c << " to " << d;
        }
      }
    }
  }
}

TEST(BrownianTest, IncrementsTurnWithTheirDirection) {
  const auto down = brownian_increment(5.0, 1.0, kEnd);
  const auto up = brownian_increment(1.0, 5.0, kEnd);
  EXPECT_NEAR(covariance(down, up), -1.0, 1e-12);
  // Nearer to each other than the path is divided.
  const auto close = brownian_increment(1.0, 1.0 - 1e-9, kEnd);
  EXPECT_NEAR(covariance(close, close), 1.0, 1e-12);
}

}  // namespace brownian_test
}  // namespace kinora::diffusion
