#include "kinora/data/normalise.h"

#include <ATen/TensorOperators.h>

#include "kinora/core/error.h"

namespace kinora::data {

at::Tensor to_float(const at::Tensor& images, const at::Device& device) {
  if (images.scalar_type() == at::kFloat) {
    return images.to(device, /*non_blocking=*/true);
  }
  KINORA_CHECK(images.scalar_type() == at::kByte, kShape,
               "[to_float] images must be of type uint8, and latents float32, got ",
               images.scalar_type());
  return images.to(device, /*non_blocking=*/true).to(at::kFloat).div_(127.5F).sub_(1.0F);
}

at::Tensor to_mask(const at::Tensor& masks, const at::Device& device) {
  constexpr int kLeastWhite = 128;
  return (masks.to(device, /*non_blocking=*/true) >= kLeastWhite).to(at::kFloat);
}

}  // namespace kinora::data
