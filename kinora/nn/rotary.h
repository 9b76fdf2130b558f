#pragma once

#include <ATen/core/Tensor.h>

namespace kinora::nn {

/// Turns the interleaved pairs (x[2 i], x[2 i + 1]) of the last dim of x (Su et al. 2021). angles:
/// fp32, broadcast to x, each angle twice. Computes in fp32 at least, returns x's type.
[[nodiscard]] at::Tensor rotated(const at::Tensor& x, const at::Tensor& angles);

}  // namespace kinora::nn
