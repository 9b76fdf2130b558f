#include "kinora/kernels/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kinora/kernels/cast.h"

namespace kinora::kernels {
namespace {

struct Fp8Format {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  float largest;
};

Fp8Format format_of(DType type) {
  return type == DType::kF8E4M3 ? Fp8Format{3, -6, 448.0F} : Fp8Format{2, -14, 57344.0F};
}

float f16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const auto mantissa = static_cast<float>(bits & 0x3ff);
  float magnitude = 0.0F;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0.0F ? std::numeric_limits<float>::infinity()
                                 : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(mantissa + 1024.0F, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

float load_element(const void* data, int64_t index, DType type) {
  if (type == DType::kF32) {
    return static_cast<const float*>(data)[index];
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store_element(void* data, int64_t index, DType type, float value) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] =
        type == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
  }
}

uint8_t float_to_fp8(float value, DType type) {
  const Fp8Format format = format_of(type);
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) {
    return sign | 0x7f;
  }
  const float magnitude = std::min(std::abs(value), format.largest);
  if (magnitude == 0.0F) {
    return sign;
  }
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  // A multiple of the last place. The hidden bit of a normal number adds one to the exponent's
  // field, and so does a carry.
  const float multiple = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const int bits =
      ((exponent - format.min_exponent) << format.mantissa_bits) + static_cast<int>(multiple);
  return sign | static_cast<uint8_t>(bits);
}

float fp8_to_float(uint8_t bits, DType type) {
  const Fp8Format format = format_of(type);
  const int magnitude_bits = bits & 0x7f;
  const int exponent = magnitude_bits >> format.mantissa_bits;
  const int hidden = 1 << format.mantissa_bits;
  const int mantissa = magnitude_bits & (hidden - 1);
  float magnitude = 0.0F;
  if (type == DType::kF8E4M3 ? magnitude_bits == 0x7f : magnitude_bits > 0x7c) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (type == DType::kF8E5M2 && magnitude_bits == 0x7c) {
    magnitude = std::numeric_limits<float>::infinity();
  } else {
    magnitude = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + hidden),
                           std::max(exponent, 1) - 1 + format.min_exponent - format.mantissa_bits);
  }
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

void store_fp8(const Fp8Output& output, int64_t rows, int64_t width, int64_t row, int64_t column,
               float value) {
  const float scale = output.scale == nullptr ? 1.0F : *output.scale;
  const uint8_t bits = float_to_fp8(value * scale, output.type);
  if (output.data != nullptr) {
    static_cast<uint8_t*>(output.data)[row * width + column] = bits;
  }
  if (output.transposed != nullptr) {
    auto* copy = static_cast<uint8_t*>(output.transposed) + column * transposed_pitch(rows);
    copy[row] = bits;
    if (row == rows - 1) {
      std::fill(copy + rows, copy + transposed_pitch(rows), uint8_t{0});
    }
  }
  if (output.amax != nullptr) {
    // As integers, so that NaN is the largest, as on a GPU.
    const auto magnitude = std::bit_cast<uint32_t>(std::abs(value));
    *output.amax = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(*output.amax), magnitude));
  }
}

}  // namespace kinora::kernels
