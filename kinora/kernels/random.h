#pragma once

#include <cstdint>

#include "kinora/core/host_device.h"
#include "kinora/core/philox.h"

/// Arrays of random numbers. This header has what the host and the GPU share and the CPU kernel;
/// the launcher of the CUDA kernel is in kernels/cuda/random.h. Both give the same bits.
namespace kinora::kernels {

enum class Distribution : uint8_t {
  kNormal,            ///< scale * N(0, 1)
  kUniform,           ///< scale * U(0, 1), ends excluded
  kSymmetricUniform,  ///< U(-scale, scale), ends excluded
};

/// Elements 4 * block ... 4 * block + 3 of `stream`.
KINORA_HOST_DEVICE inline void random_block(const RandomStream& stream, uint32_t block,
                                            Distribution distribution, float scale, float out[4]) {
  const PhiloxBlock words = philox(stream, block);
  if (distribution == Distribution::kNormal) {
    philox_normal(words, out);
  } else {
    for (int i = 0; i < 4; ++i) {
      out[i] = philox_uniform(words.word[i]);
      if (distribution == Distribution::kSymmetricUniform) {
        // Exact: u is an odd multiple of 2^-24.
        out[i] = philox_detail::add(philox_detail::add(out[i], out[i]), -1.0F);
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = philox_detail::mul(out[i], scale);
  }
}

/// A stream has 2^34 elements: its counter holds 32 bits of blocks of four.
inline constexpr uint64_t kMaxStreamElements = uint64_t{1} << 34;

/// out[i] = element first_element + i of `stream`, i in [0, count).
/// @param out            [count], any alignment.
/// @param first_element  where a shard or a thread starts within the stream;
///                       first_element + count <= kMaxStreamElements.
void random_fill(float* out, int64_t count, const RandomStream& stream, uint64_t first_element,
                 Distribution distribution, float scale);

}  // namespace kinora::kernels
