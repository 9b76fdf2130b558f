#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/fp8.h"

/// Quantising eight values at a time, and tiles of bytes in shared memory that leave transposed.
/// Device code only.
///
/// A tile has 16 * kSegments rows; a column leaves as kSegments pieces of 16 bytes, written by
/// neighbouring lanes, so that a warp writes runs of 16 * kSegments bytes. Rows of later segments
/// are stored with their 4-byte words exchanged (an exclusive or), so that the lanes of a warp,
/// which read the same columns of rows 16 apart, meet all 32 banks.
namespace kinora::kernels::cuda {

constexpr int kTileSegment = 16;  ///< rows of one 16-byte store

/// Bytes from one row of a tile to the next: whole sets of banks, as the exchange needs.
constexpr int tile_pitch(int width) {
  return round_up(width, 128);
}

/// Where byte `column` of a row of a tile lies.
template <int kSegments>
__device__ __forceinline__ int tile_offset(int pitch, int row, int column) {
  return row * pitch + (column ^ (row / kTileSegment * (128 / kSegments)));
}

// Without conversion instructions (below sm_89) this is long: one copy of it, then.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define KINORA_FP8_CALL __noinline__
#else
#define KINORA_FP8_CALL __forceinline__
#endif

/// Four values, scaled, as 8-bit floats, the first in the lowest byte.
static __device__ KINORA_FP8_CALL uint32_t quantise_word(float a, float b, float c, float d,
                                                         float scale, bool e5m2) {
  return quantise4(a, b, c, d, scale, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

#undef KINORA_FP8_CALL

__device__ __forceinline__ uint2 quantise8(const float (&v)[8], float scale, bool e5m2) {
  return make_uint2(quantise_word(v[0], v[1], v[2], v[3], scale, e5m2),
                    quantise_word(v[4], v[5], v[6], v[7], scale, e5m2));
}

/// Four words of four bytes, transposed.
__device__ __forceinline__ void transpose4x4(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                             uint32_t (&columns)[4]) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140);  // a0 b0 a1 b1
  const uint32_t cd_low = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362);  // a2 b2 a3 b3
  const uint32_t cd_high = __byte_perm(c, d, 0x7362);
  columns[0] = __byte_perm(ab_low, cd_low, 0x5410);
  columns[1] = __byte_perm(ab_low, cd_low, 0x7632);
  columns[2] = __byte_perm(ab_high, cd_high, 0x5410);
  columns[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Writes the first num_rows rows and `width` columns of a tile: byte (r, c) to
/// out[c * out_pitch + r], and zeros behind them up to a multiple of 16. width: a multiple of 4;
/// out and out_pitch aligned to 16. All threads of the block take part; the caller synchronises
/// before and after.
template <int kSegments>
__device__ __forceinline__ void store_transposed(const uint8_t* tile, int pitch, int num_rows,
                                                 int width, uint8_t* out, int64_t out_pitch) {
  const int num_items = width / 4 * kSegments;
  for (int item = static_cast<int>(threadIdx.x); item < num_items;
       item += static_cast<int>(blockDim.x)) {
    const int first_row = item % kSegments * kTileSegment;
    const int column = item / kSegments * 4;
    if (first_row < num_rows) {
      uint32_t words[4][4];  // [column][quarter of the segment]
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        uint32_t row_words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first_row + 4 * quarter + i;
          row_words[i] = row < num_rows ? *reinterpret_cast<const uint32_t*>(
                                              tile + tile_offset<kSegments>(pitch, row, column))
                                        : 0;
        }
        uint32_t columns[4];
        transpose4x4(row_words[0], row_words[1], row_words[2], row_words[3], columns);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i][quarter] = columns[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint4*>(out + (column + i) * out_pitch + first_row) =
            make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
      }
    }
  }
}

}  // namespace kinora::kernels::cuda
