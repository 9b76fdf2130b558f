#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::models {

inline constexpr int64_t kTimeWaves = 256;

/// A sinusoid of `dims` (cos first, max period 1e4) of times: [B] -> [B, dims].
[[nodiscard]] at::Tensor time_waves(const at::Tensor& t, int64_t dims = kTimeWaves);

}  // namespace kinora::models
