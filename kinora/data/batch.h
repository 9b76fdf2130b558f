#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::data {

/// One micro-batch on the host.
struct Batch {
  /// Pinned where a GPU is used; to_float makes of either what a model takes.
  at::Tensor images;        ///< images: uint8 [B, 3, H, W]; latents: float32 [B, C, h, w]
  at::Tensor labels;        ///< int64 [B]
  at::Tensor sample_index;  ///< int64 [B]: position in the data stream, the RNG's sample number
};

}  // namespace kinora::data
