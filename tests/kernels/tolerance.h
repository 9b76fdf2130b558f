#pragma once

#include <cmath>

#include "kinora/core/dtype.h"

namespace kinora::kernels {

/// How far a kernel's result may lie from its CPU reference, relative to the larger of the value
/// and the array's usual magnitude: one unit in the last place of the type, or for fp32 what fast
/// functions and another order of additions cost.
[[nodiscard]] inline double tolerance_of(DType type) {
  switch (type) {
    case DType::kF32:
      return 1e-5;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF8E4M3:
      return 0x1p-3;
    case DType::kF8E5M2:
      return 0x1p-2;
    default:
      return 0.0;
  }
}

/// Whether `got` is `want` within the tolerance, or the same NaN or infinity.
[[nodiscard]] inline bool is_close(double got, double want, DType type, double magnitude = 0.0) {
  if (std::isnan(want) || std::isinf(want)) {
    return std::isnan(want) ? std::isnan(got) : got == want;
  }
  return std::abs(got - want) <= tolerance_of(type) * std::max(std::abs(want), magnitude);
}

}  // namespace kinora::kernels
