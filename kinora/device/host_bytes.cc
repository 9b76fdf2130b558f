#include "kinora/device/host_bytes.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::device {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 12> kTypes = {{
    {DType::kBool, at::kBool},
    {DType::kU8, at::kByte},
    {DType::kI8, at::kChar},
    {DType::kI16, at::kShort},
    {DType::kI32, at::kInt},
    {DType::kI64, at::kLong},
    {DType::kF8E4M3, at::kFloat8_e4m3fn},
    {DType::kF8E5M2, at::kFloat8_e5m2},
    {DType::kF16, at::kHalf},
    {DType::kBF16, at::kBFloat16},
    {DType::kF32, at::kFloat},
    {DType::kF64, at::kDouble},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [file_type, torch_type] : kTypes) {
    if (file_type == dtype) {
      return torch_type;
    }
  }
  KINORA_UNREACHABLE("[host_bytes] unknown dtype");
}

DType dtype_of(at::ScalarType type) {
  for (const auto& [file_type, torch_type] : kTypes) {
    if (torch_type == type) {
      return file_type;
    }
  }
  throw_error(ErrorKind::kShape, "[host_bytes] tensors of type ", type, " cannot be stored");
}

at::Tensor tensor_from_bytes(DType dtype, const std::vector<int64_t>& shape,
                             std::span<const std::byte> bytes) {
  at::Tensor tensor = at::empty(shape, scalar_type(dtype));
  KINORA_CHECK(tensor.nbytes() == bytes.size(), kInternal, "[host_bytes] ", tensor.nbytes(),
               " bytes are needed, got ", bytes.size());
  if (!bytes.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return tensor;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  KINORA_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), kInternal,
               "[host_bytes] the tensor must be contiguous and on the CPU");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace kinora::device
