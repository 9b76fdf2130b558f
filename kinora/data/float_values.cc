#include "kinora/data/float_values.h"

#include <c10/util/Half.h>

#include "kinora/core/error.h"

namespace kinora::data {

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void read_floats(const std::byte* bytes, DType dtype, int64_t first, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  float* values = out.data();
  bytes += first * static_cast<int64_t>(size_of(dtype));
  switch (dtype) {
    case DType::kF32:
      std::memcpy(values, bytes, out.size_bytes());
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        values[i] = c10::Half(value_at<uint16_t>(bytes, i), c10::Half::from_bits());
      }
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        values[i] = bf16_to_float(value_at<uint16_t>(bytes, i));
      }
      return;
    default:
      KINORA_UNREACHABLE("[data] values that are no floats: ", to_string(dtype));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string(shape[dim]);
  }
  return text + "]";
}

}  // namespace kinora::data
