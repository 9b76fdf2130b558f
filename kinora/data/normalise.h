#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::data {

/// A batch's images as models take them: float32 on `device`. Of uint8 images of any shape,
/// x / 127.5 - 1, which lies in [-1, 1]; the bytes travel, not the floats. Float32 latents pass as
/// they are: on the CPU the result is the same memory. From pinned memory the copy runs beside the
/// host. Throws Error (kShape) for other types.
[[nodiscard]] at::Tensor to_float(const at::Tensor& images, const at::Device& device);

/// A batch's masks of what is filled in as models take them: float32 on `device`, 1 where they are
/// white, from half of it on, and 0 elsewhere. masks: uint8.
[[nodiscard]] at::Tensor to_mask(const at::Tensor& masks, const at::Device& device);

}  // namespace kinora::data
