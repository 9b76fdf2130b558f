#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::data {

/// One micro-batch on the host.
struct Batch {
  at::Tensor images;        ///< uint8 [B, C, H, W]; pinned where a GPU is used
  at::Tensor labels;        ///< int64 [B]
  at::Tensor sample_index;  ///< int64 [B]: position in the data stream, the RNG's sample number
};

}  // namespace kinora::data
