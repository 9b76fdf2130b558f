#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinora::models {

inline constexpr int64_t kTimeWaves = 256;

/// A sinusoid of so many dims (cos first, max period 1e4) of times: [B] -> [B, 256].
[[nodiscard]] at::Tensor time_waves(const at::Tensor& t);

}  // namespace kinora::models
