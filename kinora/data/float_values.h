#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kinora/core/dtype.h"

/// Numbers in mapped safetensors files, which may lie unaligned.
namespace kinora::data {

/// Whether values of this type can be read as floats: F32, F16 or BF16.
[[nodiscard]] bool is_float(DType dtype);

/// The values [first, first + out.size()) of `bytes`, of a type that is_float.
void read_floats(const std::byte* bytes, DType dtype, int64_t first, std::span<float> out);

/// Value `index` of `bytes`.
template <typename Value>
[[nodiscard]] Value value_at(const std::byte* bytes, int64_t index) {
  Value value;
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
  return value;
}

/// "[4, 32, 32]".
[[nodiscard]] std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace kinora::data
