#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/models/model_config.h"

namespace kinora::models {

/// A clip counted in patches.
struct Grid {
  int64_t frames = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  [[nodiscard]] int64_t tokens_a_frame() const { return rows * columns; }
};

/// Of the size that the model is configured for.
[[nodiscard]] Grid grid_of(const ModelConfig& config);

/// Of x_t: [B, channels, H, W] (one frame) or [B, channels, frames, H, W]. A patch at the end need
/// not be full.
[[nodiscard]] Grid grid_of(const ModelConfig& config, const at::Tensor& x_t);

}  // namespace kinora::models
