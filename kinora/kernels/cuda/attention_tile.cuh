#pragma once

#include "kinora/kernels/attention.h"
#include "kinora/kernels/cuda/attention_ops.cuh"

/// What the forward and the backward kernel share: rows of a head in shared memory, and products of
/// a warp's tile with them.
namespace kinora::kernels::cuda::attention {

/// A row of head_dim 16-bit elements, in chunks of 8 (16 bytes, the width of an n8 tile).
template <int kHeadDim>
struct Row {
  static_assert(kHeadDim % 8 == 0);
  static constexpr int kChunks = kHeadDim / 8;
  /// Bytes from row to row in shared memory: an odd number of chunks, so that 8 rows at one column
  /// lie in different banks, as ldmatrix wants it.
  static constexpr int kPitch = (kChunks | 1) * 16;
};

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;
/// By how much, in powers of two, a score may exceed the running maximum before that is raised
/// (attention_forward.cuh).
inline constexpr float kSlack = 8.0F;

/// Row `row` of head h of sample b.
__device__ __forceinline__ uint16_t* row_of(const HeadsView& view, int64_t b, int64_t row,
                                            int64_t h) {
  return static_cast<uint16_t*>(view.data) + b * view.batch_stride + row * view.row_stride +
         h * view.head_stride;
}

/// A sample's keys: rows [begin, begin + count) of sample b of K and V, or of the array of all
/// samples' rows (then b is 0).
struct KeyRange {
  int b;
  int begin;
  int count;
};

__device__ __forceinline__ KeyRange key_range(const AttentionShape& shape, int b) {
  if (shape.key_lengths != nullptr) {
    return {b, 0, shape.key_lengths[b]};
  }
  if (shape.key_offsets == nullptr) {
    return {b, 0, static_cast<int>(shape.key_length)};
  }
  const int begin = shape.key_offsets[b];
  return {0, begin, shape.key_offsets[b + 1] - begin};
}

/// Starts copying chunks [first, last) of rows of a head (chunk i is of row i / kChunks) to shared
/// memory with all threads of the block; rows from `num_rows` on are zeros.
template <int kHeadDim>
__device__ __forceinline__ void copy_chunks(uint32_t target, const uint16_t* rows,
                                            int64_t row_stride, int num_rows, int first, int last) {
  using R = Row<kHeadDim>;
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += static_cast<int>(blockDim.x)) {
    const int row = i / R::kChunks;
    const int chunk = i - row * R::kChunks;
    const bool valid = row < num_rows;
    copy_async(target + row * R::kPitch + chunk * 16,
               rows + (valid ? row : 0) * row_stride + chunk * 8, valid);
  }
}

/// Writes one row's words [kChunks] (word of chunk c: elements 8 c + 2 t, 8 c + 2 t + 1) to memory.
/// All lanes of the quad must call it with the same row; only `valid` rows are written.
template <int kChunks>
__device__ __forceinline__ void store_row(uint16_t* row, bool valid, int t,
                                          const uint32_t (&words)[kChunks]) {
#pragma unroll
  for (int c = 0; c + 4 <= kChunks; c += 4) {
    uint32_t r[4] = {words[c], words[c + 1], words[c + 2], words[c + 3]};
    transpose_quad(r, t);
    if (valid) {
      store_global(row + (c + t) * 8, make_uint4(r[0], r[1], r[2], r[3]));
    }
  }
#pragma unroll
  for (int c = kChunks / 4 * 4; c < kChunks; ++c) {
    if (valid) {
      *reinterpret_cast<uint32_t*>(row + c * 8 + 2 * t) = words[c];
    }
  }
}

/// acc [16 kMTiles x 8 kNTiles] += A B^T over head_dim, where A and B are rows in shared memory.
/// @param a  address of A's first row
/// @param b  address of B's first row
template <typename T, int kHeadDim, int kMTiles, int kNTiles>
__device__ __forceinline__ void multiply_rows(float (&acc)[kMTiles][kNTiles][4], uint32_t a,
                                              uint32_t b, int lane) {
  using R = Row<kHeadDim>;
  static_assert(kNTiles == 2 || kNTiles == 4);
  // A: matrices (rows 0-7, chunk 0), (8-15, 0), (0-7, 1), (8-15, 1) are a0 ... a3.
  const uint32_t a_lane = a + (lane & 15) * R::kPitch + (lane >> 4) * 16;
  // B: matrices (rows 0-7, chunk 0), (0-7, 1), (8-15, 0), (8-15, 1): b0, b1 of two tiles.
  const uint32_t b_lane =
      b + ((lane & 7) + ((lane >> 4) << 3)) * R::kPitch + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (int step = 0; step < R::kChunks / 2; ++step) {
    uint32_t b_fragment[kNTiles / 2][4];
#pragma unroll
    for (int j = 0; j < kNTiles / 2; ++j) {
      load_matrices(b_fragment[j], b_lane + j * 16 * R::kPitch + step * 32);
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      uint32_t a_fragment[4];
      load_matrices(a_fragment, a_lane + m * 16 * R::kPitch + step * 32);
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        multiply_add16<T>(acc[m][n], a_fragment, b_fragment[n / 2][n % 2 * 2],
                          b_fragment[n / 2][n % 2 * 2 + 1]);
      }
    }
  }
  if constexpr (R::kChunks % 2 == 1) {
    constexpr int kLast = (R::kChunks - 1) * 16;
    uint32_t b_fragment[kNTiles];  // b0 of the tiles
    load_matrices(b_fragment, b + (lane & (8 * kNTiles - 1)) * R::kPitch + kLast);
    uint32_t a_fragment[kMTiles * 2];  // a0, a1 of each
    load_matrices(a_fragment, a + (lane & (16 * kMTiles - 1)) * R::kPitch + kLast);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        multiply_add8<T>(acc[m][n], a_fragment[2 * m], a_fragment[2 * m + 1], b_fragment[n]);
      }
    }
  }
}

/// acc [16 kMTiles x head_dim] += A B, where A [16 kMTiles x 8 kKTiles] was packed from
/// accumulators (words[m][tile][0] of row g, [1] of row g + 8) and B is 8 kKTiles rows in shared
/// memory.
template <typename T, int kHeadDim, int kMTiles, int kKTiles>
__device__ __forceinline__ void multiply_packed(float (&acc)[kMTiles][kHeadDim / 8][4],
                                                const uint32_t (&words)[kMTiles][kKTiles][2],
                                                uint32_t b, int lane) {
  using R = Row<kHeadDim>;
#pragma unroll
  for (int step = 0; step < kKTiles / 2; ++step) {
    uint32_t a_fragment[kMTiles][4];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      a_fragment[m][0] = words[m][2 * step][0];
      a_fragment[m][1] = words[m][2 * step][1];
      a_fragment[m][2] = words[m][2 * step + 1][0];
      a_fragment[m][3] = words[m][2 * step + 1][1];
    }
    // Transposed matrices (rows 0-7, chunk 0), (8-15, 0), (0-7, 1), (8-15, 1): b0, b1 of two tiles.
    const uint32_t b_row = b + (step * 16 + (lane & 15)) * R::kPitch;
#pragma unroll
    for (int n = 0; n + 2 <= R::kChunks; n += 2) {
      uint32_t b_fragment[4];
      load_transposed(b_fragment, b_row + (lane >> 4) * 16 + n * 16);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        multiply_add16<T>(acc[m][n], a_fragment[m], b_fragment[0], b_fragment[1]);
        multiply_add16<T>(acc[m][n + 1], a_fragment[m], b_fragment[2], b_fragment[3]);
      }
    }
    if constexpr (R::kChunks % 2 == 1) {
      uint32_t b_fragment[2];
      load_transposed(b_fragment, b_row + (R::kChunks - 1) * 16);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        multiply_add16<T>(acc[m][R::kChunks - 1], a_fragment[m], b_fragment[0], b_fragment[1]);
      }
    }
  }
}

}  // namespace kinora::kernels::cuda::attention
