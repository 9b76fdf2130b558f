#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"

/// The gate of GEGLU (Shazeer 2020): each row of `uv` has u and then v, `width` elements each, and
///
///   g = u GELU(v),  GELU(v) = v (1 + erf(v / sqrt 2)) / 2  (Hendrycks and Gimpel 2016)
///
/// contiguous. Arithmetic is fp32. The launchers are in kernels/cuda/gated_gelu.h.
namespace kinora::kernels {

struct GatedGeluForward {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;  ///< of all: kF32, kBF16, kF16
  const void* uv = nullptr;   ///< [rows, 2 width]
  void* g = nullptr;          ///< [rows, width]
};

/// du = dg GELU(v), dv = dg u GELU'(v).
struct GatedGeluBackward {
  int64_t rows = 0;
  int64_t width = 0;
  DType type = DType::kBF16;
  const void* uv = nullptr;
  const void* dg = nullptr;  ///< [rows, width]
  void* duv = nullptr;       ///< [rows, 2 width]; may be uv
};

/// The CPU reference: plain loops, in double.
void gated_gelu_forward(const GatedGeluForward& call);
void gated_gelu_backward(const GatedGeluBackward& call);

}  // namespace kinora::kernels
