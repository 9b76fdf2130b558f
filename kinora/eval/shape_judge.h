#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "kinora/data/shapes.h"

/// Tells exactly what a picture of the generated set (data/shapes.h) shows, by geometry and hue,
/// not by a trained model: the measure of the demo and of tests.
namespace kinora::eval {

struct ShapeVerdict {
  data::Shape shape = data::Shape::kCircle;
  data::Colour colour = data::Colour::kRed;
  float overlap = 0.0F;  ///< of the picture's and the ideal shape's areas (IoU), at most 1

  [[nodiscard]] int64_t label() const { return data::shape_label(shape, colour); }
};

/// Nothing unless `image`, [3, H, W] of uint8 or of float in [-1, 1], clearly shows one whole shape
/// of one of the colours on a plain ground. Bears the faults of sampled pictures: blur of about a
/// pixel at 32 x 32, noise of standard deviation 0.05 (of the range 0 to 1).
[[nodiscard]] std::optional<ShapeVerdict> judge_shape(const at::Tensor& image);

struct ShapeScore {
  int64_t num_right = 0;
  int64_t num_images = 0;
};

/// How many of `images` [B, 3, H, W] show the class of `labels` int64 [B]. Throws Error (kShape).
[[nodiscard]] ShapeScore judge_shapes(const at::Tensor& images, const at::Tensor& labels);

}  // namespace kinora::eval
