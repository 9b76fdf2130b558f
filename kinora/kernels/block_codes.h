#pragma once

#include <cstddef>
#include <cstdint>

#include "kinora/core/host_device.h"

/// Numbers in 8 bits: codes of the "dynamic tree" map, times one fp32 scale for each block of 256
/// (Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022, section 2.2).
/// bitsandbytes' blockwise codes, to the bit: its create_dynamic_map and quantize_blockwise.
namespace kinora::kernels {

/// Elements that share a scale: the largest of their magnitudes.
inline constexpr int64_t kCodeBlock = 256;

struct CodeMap {
  float value[256] = {};  ///< of each code, ascending from -1 (unsigned: 0) to 1
  float bound[255] = {};  ///< half way between neighbours; a number on it belongs to the lower one
};

/// Seven decades, each with twice as many values as the one below it.
constexpr CodeMap make_code_map(bool is_signed) {
  // fp32 as torch.linspace(0.1, 1, n + 1) computes it: from both ends, each element rounded once.
  constexpr float kFirst = 0.1F;
  constexpr float kDecades[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  CodeMap map;
  const size_t zero = is_signed ? 127 : 0;
  size_t code = zero + 1;
  for (int i = 0; i < 7; ++i) {
    const int count = 1 << (is_signed ? i : i + 1);
    const float step = (1.0F - kFirst) / static_cast<float>(count);
    const auto edge = [&](int k) {
      const double up = static_cast<double>(kFirst) + static_cast<double>(step) * k;
      const double down = 1.0 - static_cast<double>(step) * (count - k);
      return static_cast<float>(k < (count + 1) / 2 ? up : down);
    };
    for (int k = 0; k < count; ++k, ++code) {
      map.value[code] = kDecades[i] * ((edge(k) + edge(k + 1)) / 2.0F);
      if (is_signed) {
        map.value[2 * zero - code] = -map.value[code];
      }
    }
  }
  map.value[255] = 1.0F;
  for (size_t i = 0; i < 255; ++i) {
    map.bound[i] = (map.value[i] + map.value[i + 1]) / 2.0F;
  }
  return map;
}

/// Of first moments and momenta, and of second moments.
inline constexpr CodeMap kSignedCodes = make_code_map(true);
inline constexpr CodeMap kUnsignedCodes = make_code_map(false);

/// What values are multiplied by before their codes are looked for.
KINORA_HOST_DEVICE inline float code_multiplier(float scale) {
  constexpr float kLeast = 1e-38F;  // so that a block of zeros has codes
  return 1.0F / (scale > kLeast ? scale : kLeast);
}

/// The code nearest to x: how many bounds are below it.
KINORA_HOST_DEVICE inline uint8_t nearest_code(const float* bound, float x) {
  int code = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int step = 128; step > 0; step /= 2) {
    code += bound[code + step - 1] < x ? step : 0;
  }
  return static_cast<uint8_t>(code);
}

}  // namespace kinora::kernels
