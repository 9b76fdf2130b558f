#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

/// Results of one computation in several ways: outputs and gradients by name, and how far apart the
/// ways may be.
namespace kinora::ops {

struct NamedResult {
  std::string name;
  at::Tensor value;
};
using NamedResults = std::vector<NamedResult>;

/// Errors of a tensor relative to the largest magnitude of the expected one.
struct TensorError {
  double rms = 0.0;      ///< root mean square over the elements
  double largest = 0.0;  ///< of one element
};

/// Not finite where one of `got` is not.
inline TensorError error_of(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor exact = expected.detach().to(at::kDouble);
  const at::Tensor difference = (got.detach().to(at::kDouble) - exact).abs();
  const auto scale = exact.abs().max().item<double>();
  if (scale == 0.0 && difference.max().item<double>() == 0.0) {
    return {0.0, 0.0};  // of what has no effect
  }
  return {difference.square().mean().sqrt().item<double>() / scale,
          difference.max().item<double>() / scale};
}

/// Every tensor within `tolerance` of the expected one, of its largest magnitude.
inline void expect_near(const NamedResults& expected, const NamedResults& got, double tolerance,
                        const std::string& how) {
  ASSERT_EQ(expected.size(), got.size()) << how;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = error_of(got[i].value, expected[i].value).largest;
    // Written so that NaN fails.
    EXPECT_TRUE(error <= tolerance) << expected[i].name << " is " << error << " off, " << how;
  }
}

/// Every tensor of `got` about as near to `exact` as that of `plain`, another way in the same
/// 16-bit type.
///
/// The two ways round at different places, so their errors are different draws of about the same
/// size. Over a whole tensor they average out: 1.5 times the root mean square. One element's
/// largest error is the tail of a distribution and scatters more: 2.5 times. The floors, a quarter
/// of and two roundings to bf16 (2^-9), are for tensors that `plain` keeps in more bits. The errors
/// of both paths of a DiT of two blocks are some 0.1 % (rms; 0.5 to 1 % at most), so a tensor 2 %
/// too large or without its largest row is beyond what is allowed. `slack`: the factors times this,
/// where `got` has to round more often.
inline void expect_as_near(const NamedResults& exact, const NamedResults& plain,
                           const NamedResults& got, const std::string& how, double slack = 1.0) {
  constexpr double kRounding = 0x1p-9;
  const TensorError factor{.rms = 1.5 * slack, .largest = 2.5 * slack};
  constexpr TensorError kFloor{.rms = kRounding / 4, .largest = 2 * kRounding};
  ASSERT_EQ(exact.size(), plain.size()) << how;
  ASSERT_EQ(exact.size(), got.size()) << how;
  for (size_t i = 0; i < exact.size(); ++i) {
    const TensorError allowed = error_of(plain[i].value, exact[i].value);
    const TensorError error = error_of(got[i].value, exact[i].value);
    EXPECT_TRUE(error.rms <= factor.rms * allowed.rms + kFloor.rms &&
                error.largest <= factor.largest * allowed.largest + kFloor.largest)
        << exact[i].name << " is " << error.rms << " off (rms; " << error.largest
        << " at most), the plain path " << allowed.rms << " (" << allowed.largest << "), " << how;
  }
}

/// The same bits.
inline void expect_same(const NamedResults& expected, const NamedResults& got,
                        const std::string& how) {
  ASSERT_EQ(expected.size(), got.size()) << how;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(expected[i].value, got[i].value)) << expected[i].name << ", " << how;
  }
}

/// |got - expected| / |expected| of every tensor at most `tolerance`.
inline void expect_relative(const NamedResults& expected, const NamedResults& got, double tolerance,
                            const std::string& how) {
  ASSERT_EQ(expected.size(), got.size()) << how;
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor exact = expected[i].value.to(at::kDouble);
    const auto norm = exact.norm().item<double>();
    const auto difference = (got[i].value.to(at::kDouble) - exact).norm().item<double>();
    const double error = norm == 0.0 && difference == 0.0 ? 0.0 : difference / norm;
    EXPECT_TRUE(error <= tolerance) << expected[i].name << " is " << error << " off, " << how;
  }
}

}  // namespace kinora::ops
