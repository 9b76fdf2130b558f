#pragma once

#include <cstdint>

#include "kinora/core/dtype.h"
#include "kinora/kernels/fp8.h"

/// Single elements of arrays whose type is known at run time, for the CPU references.
namespace kinora::kernels {

/// Element `index` of an array of kF32, kBF16 or kF16.
[[nodiscard]] float load_element(const void* data, int64_t index, DType type);

/// data[index] = value, rounded to nearest even.
void store_element(void* data, int64_t index, DType type, float value);

/// The nearest 8-bit float's bits, ties to even; beyond the largest number: that one, with its
/// sign. NaN stays NaN.
/// @param type  kF8E4M3 or kF8E5M2.
[[nodiscard]] uint8_t float_to_fp8(float value, DType type);

/// The float of an 8-bit float's bits.
[[nodiscard]] float fp8_to_float(uint8_t bits, DType type);

/// Writes one element of a [rows, width] matrix to what is wanted of `output`.
void store_fp8(const Fp8Output& output, int64_t rows, int64_t width, int64_t row, int64_t column,
               float value);

}  // namespace kinora::kernels
