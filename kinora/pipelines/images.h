#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kinora/io/image.h"

namespace kinora::pipelines {

/// Pixels in [-1, 1], float32 [B, 3 or 1, H, W], as images; values outside are clipped.
[[nodiscard]] std::vector<io::Image> to_images(const at::Tensor& pixels);

}  // namespace kinora::pipelines
