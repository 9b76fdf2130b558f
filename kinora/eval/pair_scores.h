#pragma once

#include "kinora/io/image.h"

/// How near an image is to the one that it should be.
namespace kinora::eval {

/// Peak signal-to-noise ratio in dB over all values of all channels, peak 255; infinite for equal
/// images. kShape unless of one size.
[[nodiscard]] double psnr(const io::Image& image, const io::Image& reference);

/// Structural similarity (Wang et al. 2004): Gaussian window of 11 x 11 and standard deviation 1.5,
/// K1 = 0.01, K2 = 0.03, peak 255, covariances over the window's weights; the mean over all places
/// where the window lies within the image and over the three channels. kShape unless of one size of
/// at least 11 x 11.
[[nodiscard]] double ssim(const io::Image& image, const io::Image& reference);

}  // namespace kinora::eval
