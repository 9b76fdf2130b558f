#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

/// Element types of tensors, for the floors that know no torch.
namespace kinora {

/// The 8-bit floats are those of Micikevicius et al. 2022, "FP8 formats for deep learning": E4M3
/// has no infinity, its largest number is 448; E5M2's is 57344.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF8E4M3,
  kF8E5M2,
  kF16,
  kBF16,
  kF32,
  kF64
};

/// Bytes of one element.
[[nodiscard]] size_t size_of(DType dtype);

/// The name in safetensors headers: "BOOL", "U8", "I8", "I16", "I32", "I64", "F8_E4M3",
/// "F8_E5M2", "F16", "BF16", "F32", "F64".
[[nodiscard]] std::string_view to_string(DType dtype);

/// The inverse; nothing for an unknown name.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

/// The float of a bfloat16's bits.
[[nodiscard]] inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

/// The nearest bfloat16's bits, ties to even; NaN stays a quiet NaN.
[[nodiscard]] inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace kinora
