#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kinora/data/shapes.h"

/// What the judges of this folder share. Not for use outside eval/.
namespace kinora::eval {

/// A picture in [0, 1] with the channels of a pixel together.
struct Picture {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<data::Rgb> pixels;

  [[nodiscard]] const data::Rgb& at(int64_t row, int64_t column) const {
    return pixels[static_cast<size_t>(row * width + column)];
  }
};

/// Of `image`, [3, H, W] of uint8 or of float in [-1, 1]. Boxes of pixels are averaged where a side
/// is above 64. Throws Error (kShape) for other tensors; messages begin with `judge`.
[[nodiscard]] Picture to_picture(const at::Tensor& image, const char* judge);

/// By channel; reorders `values`, of which there is at least one.
[[nodiscard]] data::Rgb median(std::vector<data::Rgb>& values);

/// Between two colours, at most the root of 3.
[[nodiscard]] float distance(const data::Rgb& a, const data::Rgb& b);

/// The median of the outermost pixels of all pictures.
[[nodiscard]] data::Rgb ground_colour(std::span<const Picture> pictures);

/// The pixels that differ from the ground, and as positions the largest connected group of them
/// (over the four sides of a pixel).
struct Foreground {
  int64_t num_different = 0;
  std::vector<int64_t> largest;
};

/// The connected groups of pixels whose distance from the ground is above `contrast`.
[[nodiscard]] std::vector<std::vector<int64_t>> foreground_groups(const Picture& picture,
                                                                  const data::Rgb& ground,
                                                                  float contrast);

/// A pixel differs if its distance from the ground is above `contrast`.
[[nodiscard]] Foreground foreground(const Picture& picture, const data::Rgb& ground,
                                    float contrast);

/// The centre of a group of pixels, in pixels; x to the right, y downwards.
struct Centre {
  float x = 0.0F;
  float y = 0.0F;
};

[[nodiscard]] Centre centre_of(const std::vector<int64_t>& group, const Picture& picture);

}  // namespace kinora::eval
