#include "kinora/diffusion/beta_quantile.h"

#include <cmath>

namespace kinora::diffusion {
namespace {

// Far more than what double needs: the fraction converges in about sqrt(max(a, b)) terms.
constexpr int kMaxTerms = 300;
constexpr double kTiny = 1e-300;
constexpr double kPrecision = 1e-16;
constexpr int kBisections = 200;

/// The continued fraction of the incomplete beta function by Lentz's method (Abramowitz and Stegun
/// 1964, 26.5.8).
double continued_fraction(double x, double a, double b) {
  const auto guarded = [](double value) { return std::fabs(value) < kTiny ? kTiny : value; };
  double c = 1.0;
  double d = 1.0 / guarded(1.0 - (a + b) * x / (a + 1.0));
  double result = d;
  for (int m = 1; m <= kMaxTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m));
    d = 1.0 / guarded(1.0 + even * d);
    c = guarded(1.0 + even / c);
    result *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0));
    d = 1.0 / guarded(1.0 + odd * d);
    c = guarded(1.0 + odd / c);
    const double factor = d * c;
    result *= factor;
    if (std::fabs(factor - 1.0) < kPrecision) {
      break;
    }
  }
  return result;
}

/// The regularised incomplete beta function I_x(a, b).
double incomplete_beta(double x, double a, double b) {
  if (x <= 0.0 || x >= 1.0) {
    return x <= 0.0 ? 0.0 : 1.0;
  }
  const double log_front =
      std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x);
  // The fraction converges quickly on this side of the mean; the other side is its mirror.
  return x < (a + 1.0) / (a + b + 2.0)
             ? std::exp(log_front) * continued_fraction(x, a, b) / a
             : 1.0 - std::exp(log_front) * continued_fraction(1.0 - x, b, a) / b;
}

}  // namespace

double beta_quantile(double probability, double a, double b) {
  double low = 0.0;
  double high = 1.0;
  for (int i = 0; i < kBisections && low < high; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle == low || middle == high) {
      break;
    }
    (incomplete_beta(middle, a, b) < probability ? low : high) = middle;
  }
  return probability >= 1.0 ? 1.0 : low;
}

}  // namespace kinora::diffusion
