#pragma once

#include <cstdint>
#include <string_view>

#include "kinora/core/dtype.h"
#include "kinora/core/host_device.h"
#include "kinora/core/rounding.h"

/// Frozen weights in 8 or 4 bits: codes, and a scale for each group of consecutive elements. A code
/// stands for number(code) * scale.
///
/// This header has the arguments and the CPU kernels; kernels/cuda/weight_codes.h the launcher.
namespace kinora::kernels {

enum class WeightFormat : uint8_t {
  kInt8,  ///< whole numbers from -127 to 127; a scale is its group's largest magnitude / 127
  kFp8,   ///< E4M3; largest magnitude / 448
  /// NormalFloat4 (Dettmers et al. 2023, "QLoRA", appendix E), as bitsandbytes has it: the largest
  /// magnitude of 64 elements, and two codes a byte, the first in the higher bits.
  kNf4,
};

/// "int8", "fp8", "nf4".
[[nodiscard]] std::string_view name_of(WeightFormat format);

/// Elements of a group of kNf4.
inline constexpr int64_t kNf4Group = 64;

/// What the codes of kNf4 stand for.
inline constexpr float kNf4Numbers[16] = {-1.0F,
                                          -0.6961928009986877F,
                                          -0.5250730514526367F,
                                          -0.39491748809814453F,
                                          -0.28444138169288635F,
                                          -0.18477343022823334F,
                                          -0.09105003625154495F,
                                          0.0F,
                                          0.07958029955625534F,
                                          0.16093020141124725F,
                                          0.24611230194568634F,
                                          0.33791524171829224F,
                                          0.44070982933044434F,
                                          0.5626170039176941F,
                                          0.7229568362236023F,
                                          1.0F};

/// Bytes that codes lie on, so that kernels load whole vectors.
inline constexpr int64_t kCodeAlignment = 16;

/// Bytes of the codes of `count` elements, a multiple of kCodeAlignment.
[[nodiscard]] KINORA_HOST_DEVICE inline int64_t code_bytes(WeightFormat format, int64_t count) {
  const int64_t bytes = format == WeightFormat::kNf4 ? (count + 1) / 2 : count;
  return round_up(bytes, kCodeAlignment);
}

struct WeightCodes {
  WeightFormat format = WeightFormat::kInt8;
  int64_t count = 0;         ///< elements
  int64_t group = 1;         ///< elements that share a scale; of kNf4 kNf4Group
  uint8_t* codes = nullptr;  ///< code_bytes(format, count), aligned to kCodeAlignment
  float* scales = nullptr;   ///< ceil(count / group)
};

/// The nearest codes of `in` [count]; what pads them is left as it is. A group of zeros, or of
/// numbers that no scale can bring into range, gets the scale 0; one with a value that is not
/// finite gets NaN.
void quantise_weight(const WeightCodes& call, const float* in);

/// out[i] = number(codes[i]) * scales[i / group], rounded once to nearest even.
/// @param type  of out: kF32, kBF16, kF16.
void dequantise_weight(const WeightCodes& call, DType type, void* out);

}  // namespace kinora::kernels
