#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace kinora::ops {

/// Steps whose magnitudes count for the next scale.
inline constexpr int64_t kFp8History = 16;

/// What delayed scaling knows between two steps, of L linears' inputs (0) and gradients (1): fp32
/// on the CPU. Weights have no part in it: their scales follow from themselves at every step.
struct Fp8State {
  at::Tensor amax;     ///< [L, 2], of the last step; may be infinite or NaN
  at::Tensor history;  ///< [L, 2, kFp8History], of the steps before, the newest first
  at::Tensor scale;    ///< [L, 2], of the last step
};

/// Why scales cannot go on from `state`, "scale must be [8, 2] of F32, got ..."; empty if they can.
[[nodiscard]] std::string fault_of(const Fp8State& state);

}  // namespace kinora::ops
