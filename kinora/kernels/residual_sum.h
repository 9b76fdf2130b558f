#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// The sum behind a residual branch whose last layer left out its bias, or that bias alone. The
/// launcher is in
/// kernels/cuda/residual_sum.h.
namespace kinora::kernels {

/// out[r][c] = x[r][c] + (y[r][c] + bias[c]), contiguous, added in fp32 and rounded once.
struct ResidualSum {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of all: kF32, kBF16, kF16
  const void* x = nullptr;
  const void* y = nullptr;     ///< null: zeros
  const void* bias = nullptr;  ///< [width]
  void* out = nullptr;         ///< may be x or y
};

/// The CPU reference: a plain loop.
void residual_sum(const ResidualSum& call);

}  // namespace kinora::kernels
