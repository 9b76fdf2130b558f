#pragma once

#include <cstdint>
#include <filesystem>

namespace kinora::eval {

/// Means over pairs of images.
struct PairScores {
  int64_t num_pairs = 0;
  int64_t num_equal = 0;  ///< pairs without any difference, which have no finite PSNR
  double psnr = 0.0;      ///< dB, over the other pairs; infinite where there are none
  double ssim = 0.0;
};

/// Compares the images of two folders that have the same path below them, extensions aside. kConfig
/// where an image of one folder has none of its name in the other, or two, and for no images;
/// kShape, naming the image, for pairs of different sizes.
[[nodiscard]] PairScores score_pairs(const std::filesystem::path& images,
                                     const std::filesystem::path& references);

}  // namespace kinora::eval
