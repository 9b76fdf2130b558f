#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::data {

/// Images as models take them: float32 in [-1, 1] on `device`, x / 127.5 - 1, of uint8 images of
/// any shape. From pinned memory the copy runs beside the host; the bytes travel, not the floats.
[[nodiscard]] at::Tensor to_float(const at::Tensor& images, const at::Device& device);

}  // namespace kinora::data
