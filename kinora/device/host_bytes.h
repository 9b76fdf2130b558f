#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kinora/core/dtype.h"

/// Between tensors and the bytes of files.
namespace kinora::device {

[[nodiscard]] at::ScalarType scalar_type(DType dtype);

/// kShape for a type that files do not hold (complex, quantised, ...).
[[nodiscard]] DType dtype_of(at::ScalarType type);

/// A CPU tensor with a copy of `bytes` (C order; any alignment). kInternal if the size does not
/// fit.
[[nodiscard]] at::Tensor tensor_from_bytes(DType dtype, const std::vector<int64_t>& shape,
                                           std::span<const std::byte> bytes);

/// The bytes of a contiguous CPU tensor; they live as long as it.
[[nodiscard]] std::span<const std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace kinora::device
