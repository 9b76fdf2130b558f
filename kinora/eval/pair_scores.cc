#include "kinora/eval/pair_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <limits>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

constexpr double kPeak = 255.0;
constexpr int64_t kWindow = 11;
constexpr double kWindowStd = 1.5;
constexpr double kLuminanceTerm = 0.01 * kPeak * 0.01 * kPeak;
constexpr double kContrastTerm = 0.03 * kPeak * 0.03 * kPeak;

/// float64 [3, 1, H, W].
at::Tensor planes(const io::Image& image) {
  // from_blob wants a pointer that is not const; the copy below only reads.
  auto* const data = const_cast<uint8_t*>(image.pixels.data());
  const at::Tensor pixels = at::from_blob(data, {image.height, image.width, 3}, at::kByte);
  return pixels.permute({2, 0, 1}).to(at::kDouble).contiguous().unsqueeze(1);
}

/// Weights of the window along one side, which add up to 1.
at::Tensor gaussian_window() {
  at::Tensor window = at::empty({kWindow}, at::kDouble);
  auto* const values = window.mutable_data_ptr<double>();
  constexpr int64_t kMiddle = kWindow / 2;
  for (int64_t i = 0; i < kWindow; ++i) {
    const auto distance = static_cast<double>(i - kMiddle);
    values[i] = std::exp(-distance * distance / (2.0 * kWindowStd * kWindowStd));
  }
  return window / window.sum();
}

void check_pair(const io::Image& image, const io::Image& reference) {
  KINORA_CHECK(
      image.height == reference.height && image.width == reference.width && !image.pixels.empty(),
      kShape, "[pairs] both images must be of one size, got ", image.height, " x ", image.width,
      " and ", reference.height, " x ", reference.width);
}

}  // namespace

double psnr(const io::Image& image, const io::Image& reference) {
  check_pair(image, reference);
  const double error = (planes(image) - planes(reference)).square().mean().item<double>();
  return error == 0.0 ? std::numeric_limits<double>::infinity()
                      : 10.0 * std::log10(kPeak * kPeak / error);
}

double ssim(const io::Image& image, const io::Image& reference) {
  check_pair(image, reference);
  KINORA_CHECK(image.height >= kWindow && image.width >= kWindow, kShape,
               "[pairs] images must be of at least 11 x 11 pixels, got ", image.height, " x ",
               image.width);
  const at::Tensor window = gaussian_window();
  const auto blurred = [&](const at::Tensor& x) {
    const at::Tensor rows = at::conv2d(x, window.view({1, 1, 1, kWindow}));
    return at::conv2d(rows, window.view({1, 1, kWindow, 1}));
  };
  const at::Tensor x = planes(image);
  const at::Tensor y = planes(reference);
  const at::Tensor mean_x = blurred(x);
  const at::Tensor mean_y = blurred(y);
  const at::Tensor variances = blurred(x * x) + blurred(y * y) - mean_x * mean_x - mean_y * mean_y;
  const at::Tensor covariance = blurred(x * y) - mean_x * mean_y;
  const at::Tensor map =
      (mean_x * mean_y * 2.0 + kLuminanceTerm) * (covariance * 2.0 + kContrastTerm) /
      ((mean_x * mean_x + mean_y * mean_y + kLuminanceTerm) * (variances + kContrastTerm));
  return map.mean().item<double>();
}

}  // namespace kinora::eval
