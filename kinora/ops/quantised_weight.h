#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/kernels/weight_codes.h"

namespace kinora::ops {

/// A frozen weight in 8 or 4 bits (kernels/weight_codes.h).
struct QuantisedWeight {
  kernels::WeightFormat format = kernels::WeightFormat::kInt8;
  int64_t count = 0;  ///< elements
  int64_t group = 1;  ///< consecutive elements that share a scale
  at::Tensor codes;   ///< uint8 [kernels::code_bytes(format, count)]
  at::Tensor scales;  ///< fp32 [ceil(count / group)]
};

/// One of zeros for rows of `width` elements each: a scale a row, of kNf4 one for 64 elements.
[[nodiscard]] QuantisedWeight zero_weight(kernels::WeightFormat format, int64_t rows, int64_t width,
                                          at::Device device);

/// Sets `weight` to the nearest of `values`, which has as many elements, of any floating type and
/// on any device. The CPU computes it, and so it is the same on all devices.
void quantise(const at::Tensor& values, const QuantisedWeight& weight);

/// Writes what it stands for to `out`, of `count` elements: fp32, bf16 or fp16, on its device,
/// contiguous from 16 bytes on, or a matrix whose rows lie apart and have a multiple of 16
/// elements. The same bits on all devices. autograd does not count it as a change of `out`.
void dequantise(const QuantisedWeight& weight, const at::Tensor& out);

}  // namespace kinora::ops
