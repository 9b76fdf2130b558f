#include "kinora/core/dtype.h"

#include <array>

#include "kinora/core/error.h"

namespace kinora {
namespace {

struct Row {
  DType dtype;
  size_t size;
  std::string_view name;
};

constexpr std::array<Row, 12> kRows = {{
    {DType::kBool, 1, "BOOL"},
    {DType::kU8, 1, "U8"},
    {DType::kI8, 1, "I8"},
    {DType::kI16, 2, "I16"},
    {DType::kI32, 4, "I32"},
    {DType::kI64, 8, "I64"},
    {DType::kF8E4M3, 1, "F8_E4M3"},
    {DType::kF8E5M2, 1, "F8_E5M2"},
    {DType::kF16, 2, "F16"},
    {DType::kBF16, 2, "BF16"},
    {DType::kF32, 4, "F32"},
    {DType::kF64, 8, "F64"},
}};

const Row& row(DType dtype) {
  for (const Row& candidate : kRows) {
    if (candidate.dtype == dtype) {
      return candidate;
    }
  }
  KINORA_UNREACHABLE("[dtype] unknown value ", static_cast<int>(dtype));
}

}  // namespace

size_t size_of(DType dtype) {
  return row(dtype).size;
}

std::string_view to_string(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& candidate : kRows) {
    if (candidate.name == name) {
      return candidate.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace kinora
