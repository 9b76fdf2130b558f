#include "kinora/kernels/weight_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kinora/kernels/elements.h"
#include "kinora/kernels/fp8.h"

namespace kinora::kernels {
namespace {

constexpr float kMostInt8 = 127.0F;

/// The greatest numbers that the codes 0 to 14 of kNf4 are the nearest to.
constexpr std::array<float, 15> kNf4Bounds = [] {
  std::array<float, 15> bounds{};
  for (size_t code = 0; code < bounds.size(); ++code) {
    bounds[code] = (kNf4Numbers[code] + kNf4Numbers[code + 1]) / 2.0F;
  }
  return bounds;
}();

/// The largest magnitude; NaN where a value is not finite.
float largest_of(const float* in, int64_t count) {
  float largest = 0.0F;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(in[i]);
    finite = finite && magnitude <= std::numeric_limits<float>::max();
    largest = std::max(largest, magnitude);
  }
  return finite ? largest : std::numeric_limits<float>::quiet_NaN();
}

/// float_to_fp8() of E4M3 for magnitudes up to 448, without its calls of the C library.
uint8_t e4m3_of(float value) {
  constexpr float kSmallestNormal = 0x1p-6F;
  constexpr float kToLastPlace = 0x1p14F;  // whose last place is that of the smallest: 2^-9
  const auto sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 31 << 7);
  const float magnitude = std::abs(value);
  if (magnitude < kSmallestNormal) {
    const auto sum = std::bit_cast<uint32_t>(magnitude + kToLastPlace);
    return sign | static_cast<uint8_t>(sum - std::bit_cast<uint32_t>(kToLastPlace));
  }
  constexpr uint32_t kBias = (127 - 7) << 3;
  uint32_t bits = std::bit_cast<uint32_t>(std::min(magnitude, kLargestE4M3));
  bits += 0x7ffffU + ((bits >> 20) & 1U);
  return sign | static_cast<uint8_t>((bits >> 20) - kBias);
}

uint8_t nf4_of(float value) {
  uint8_t code = 0;
  for (const float bound : kNf4Bounds) {
    code += value > bound ? 1 : 0;
  }
  return code;
}

float scale_of(WeightFormat format, float largest) {
  switch (format) {
    case WeightFormat::kInt8:
      return largest / kMostInt8;
    case WeightFormat::kFp8:
      return largest / kLargestE4M3;
    case WeightFormat::kNf4:
      return largest;
  }
  return 0.0F;
}

/// code(value / scale) of a group.
uint8_t code_of(WeightFormat format, float value, float scale, float inverse) {
  switch (format) {
    case WeightFormat::kInt8: {
      const float whole = std::nearbyint(value / scale);
      return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(whole, -kMostInt8, kMostInt8)));
    }
    case WeightFormat::kFp8:
      return e4m3_of(value / scale);
    case WeightFormat::kNf4:
      return nf4_of(value * inverse);
  }
  return 0;
}

std::array<float, 256> numbers_of(WeightFormat format) {
  std::array<float, 256> numbers{};
  for (size_t code = 0; code < numbers.size(); ++code) {
    const auto bits = static_cast<uint8_t>(code);
    numbers[code] = format == WeightFormat::kInt8
                        ? static_cast<float>(static_cast<int8_t>(bits))
                        : (format == WeightFormat::kFp8 ? fp8_to_float(bits, DType::kF8E4M3)
                                                        : kNf4Numbers[bits & 0xf]);
  }
  return numbers;
}

template <typename Store>
void dequantise(const WeightCodes& call, const Store& store) {
  const std::array<float, 256> numbers = numbers_of(call.format);
  const bool halves = call.format == WeightFormat::kNf4;
  for (int64_t first = 0; first < call.count; first += call.group) {
    const float scale = call.scales[first / call.group];
    const int64_t end = std::min(first + call.group, call.count);
    for (int64_t i = first; i < end; ++i) {
      const uint8_t code =
          halves ? (i % 2 == 0 ? call.codes[i / 2] >> 4 : call.codes[i / 2]) : call.codes[i];
      store(i, numbers[code] * scale);
    }
  }
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  return format == WeightFormat::kInt8 ? "int8" : (format == WeightFormat::kFp8 ? "fp8" : "nf4");
}

void quantise_weight(const WeightCodes& call, const float* in) {
  const bool halves = call.format == WeightFormat::kNf4;
  for (int64_t first = 0; first < call.count; first += call.group) {
    const int64_t end = std::min(first + call.group, call.count);
    const float scale = scale_of(call.format, largest_of(in + first, end - first));
    const float inverse = 1.0F / scale;
    const bool is_usable = scale > 0.0F && inverse <= std::numeric_limits<float>::max();
    call.scales[first / call.group] = is_usable || std::isnan(scale) ? scale : 0.0F;
    for (int64_t i = first; i < end; ++i) {
      const uint8_t code = code_of(call.format, is_usable ? in[i] : 0.0F, is_usable ? scale : 1.0F,
                                   is_usable ? inverse : 1.0F);
      if (!halves) {
        call.codes[i] = code;
      } else if (i % 2 == 0) {
        call.codes[i / 2] = static_cast<uint8_t>(code << 4);
      } else {
        call.codes[i / 2] |= code;
      }
    }
  }
}

void dequantise_weight(const WeightCodes& call, DType type, void* out) {
  dequantise(call, [&](int64_t i, float value) { store_element(out, i, type, value); });
}

}  // namespace kinora::kernels
