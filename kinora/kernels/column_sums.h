#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// Sums over the rows of a matrix: bias gradients.
namespace kinora::kernels {

/// out[c] += sum over rows r of in[r * row_stride + c].
struct ColumnSums {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t row_stride = 0;     ///< in elements, at least `width`
  DType type = DType::kBF16;  ///< of in: kF32, kBF16, kF16
  const void* in = nullptr;
  float* out = nullptr;  ///< [width], in and out
};

/// The CPU reference: sums in double.
void column_sums(const ColumnSums& call);

}  // namespace kinora::kernels
