// 8-bit floats (fp8.h): quantising, transposing bytes, largest magnitudes, scales.
//
// All are bound by memory. Without a transposed copy a matrix is an array: a thread has four loads
// of eight elements in flight. With one a block takes a tile of
// 128 x 128, eight loads a thread, whose bytes go through shared memory (fp8_tile.cuh) and leave as
// runs of 128 bytes in both orders. Blocks of the block-scaled copies are those tiles, too:
// magnitudes are taken from registers, so that the input is read once. So are column sums: a tile
// leaves one row of partial ones, which a second kernel adds (column_sums.cu).
//
// Largest magnitudes are maxima of the floats' bits as integers: the order does not matter, and NaN
// is the largest.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/fp8_tile.cuh"

namespace kinora::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 8;
constexpr int kLoads = 4;  // in flight, of the kernel over arrays
constexpr int64_t kMaxBlocks = 65536;
constexpr int kTile = 128;  // rows and columns
constexpr int kSegments = kTile / kTileSegment;
constexpr int kTileChunks = kTile / kChunk;        // of a row
constexpr int kTileStep = kThreads / kTileChunks;  // rows that a block takes at a time
constexpr int kTileLoads = kTile / kTileStep;
constexpr unsigned kFullWarp = 0xffffffffU;

static_assert(kTile == kScaleBlock);

// --- Arrays --------------------------------------------------------------------------------------

/// Rows of a matrix. Those that are not adjacent are whole chunks.
struct Rows {
  int64_t width;
  int64_t stride;

  /// Where element `i` of all of them lies.
  [[nodiscard]] __device__ int64_t place(int64_t i) const {
    return stride == width ? i : i / width * stride + i % width;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantise_array_kernel(const void* __restrict__ in, int64_t count, Rows rows, Fp8Output out,
                          bool aligned) {
  const float scale = out.data != nullptr && out.scale != nullptr ? *out.scale : 1.0F;
  const bool e5m2 = out.type == DType::kF8E5M2;
  uint32_t magnitude = 0;
  constexpr int64_t kBlockElements = int64_t{kThreads} * kChunk;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kLoads * kBlockElements;
  for (int64_t base = blockIdx.x * kLoads * kBlockElements + threadIdx.x * int64_t{kChunk};
       base < count; base += stride) {
    float values[kLoads][kChunk];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t first = base + i * kBlockElements;
      const auto left = static_cast<int>(max(min(count - first, int64_t{kChunk}), int64_t{0}));
      load_floats<T, kChunk>(in, rows.place(first), left, aligned && left == kChunk, values[i]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t first = base + i * kBlockElements;
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        magnitude = larger_magnitude(magnitude, values[i][k]);
      }
      if (out.data != nullptr && first < count) {
        const uint2 bytes = quantise8(values[i], scale, e5m2);
        auto* const target = static_cast<uint8_t*>(out.data) + first;
        if (aligned && first + kChunk <= count) {
          *reinterpret_cast<uint2*>(target) = bytes;
        } else {
#pragma unroll
          for (int k = 0; k < kChunk; ++k) {
            if (first + k < count) {
              target[k] = static_cast<uint8_t>((k < 4 ? bytes.x : bytes.y) >> (k % 4 * 8));
            }
          }
        }
      }
    }
  }
  if (out.amax != nullptr) {
    record_warp_amax(out.amax, magnitude);
  }
}

template <typename T>
cudaError_t launch_array(const Quantise& call, int64_t stride, cudaStream_t stream) {
  const int64_t count = call.rows * call.width;
  constexpr int64_t kBlockElements = int64_t{kThreads} * kChunk * kLoads;
  const int64_t blocks = std::min(ceil_div(count, kBlockElements), kMaxBlocks);
  const bool aligned = is_aligned_to<16>(call.in) && is_aligned_to<8>(call.out.data);
  quantise_array_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      call.in, count, {.width = call.width, .stride = stride}, call.out, aligned);
  return cudaGetLastError();
}

// --- Tiles ---------------------------------------------------------------------------------------

/// Where a thread of a tile's block stands: rows first_row + i * kTileStep, i in [0, kTileLoads),
/// of eight columns.
struct TilePlace {
  int64_t row_base;  // of the tile
  int64_t column_base;
  int num_rows;  // of the tile
  int num_columns;
  int row;  // the thread's first, within the tile
  int column;

  __device__ TilePlace(int64_t rows, int64_t width)
      : row_base(static_cast<int64_t>(blockIdx.y) * kTile),
        column_base(static_cast<int64_t>(blockIdx.x) * kTile),
        num_rows(static_cast<int>(min(rows - row_base, int64_t{kTile}))),
        num_columns(static_cast<int>(min(width - column_base, int64_t{kTile}))),
        row(static_cast<int>(threadIdx.x) / kTileChunks),
        column(static_cast<int>(threadIdx.x) % kTileChunks * kChunk) {}

  [[nodiscard]] __device__ bool has(int i) const {
    return row + i * kTileStep < num_rows && column < num_columns;
  }
  [[nodiscard]] __device__ int64_t element(int i, int64_t width) const {
    return (row_base + row + i * kTileStep) * width + column_base + column;
  }
};

__device__ __forceinline__ void put_in_tile(uint8_t* tile, int row, int column, uint2 bytes) {
  *reinterpret_cast<uint2*>(tile + tile_offset<kSegments>(kTile, row, column)) = bytes;
}

/// kSums: a tile's column sums go to its row of `partial` [rows of tiles, width].
template <typename T, bool kSums>
__global__ void __launch_bounds__(kThreads)
    quantise_tile_kernel(const void* __restrict__ in, int64_t rows, int64_t width, int64_t stride,
                         Fp8Output out, float* __restrict__ partial) {
  constexpr int kWarps = kThreads / 32;
  __shared__ alignas(16) uint8_t tile[kTile * kTile];
  __shared__ float sums[kSums ? kWarps : 1][kSums ? kTile : 1];  // of a warp's rows
  const TilePlace place(rows, width);
  const float scale = out.scale != nullptr ? *out.scale : 1.0F;
  const bool e5m2 = out.type == DType::kF8E5M2;
  Packed<T, kChunk> packed[kTileLoads];
#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    if (place.has(i)) {
      packed[i] = load_packed<T, kChunk>(in, place.element(i, stride));
    }
  }
  uint32_t magnitude = 0;
  float sum[kChunk] = {};
#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    if (place.has(i)) {
      float values[kChunk];
      unpack<T, kChunk>(packed[i], values);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        magnitude = larger_magnitude(magnitude, values[k]);
        if constexpr (kSums) {
          sum[k] += values[k];
        }
      }
      const uint2 bytes = quantise8(values, scale, e5m2);
      if (out.data != nullptr) {
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(out.data) + place.element(i, width)) =
            bytes;
      }
      put_in_tile(tile, place.row + i * kTileStep, place.column, bytes);
    }
  }
  if (out.amax != nullptr) {
    record_warp_amax(out.amax, magnitude);
  }
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kSums) {
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      sum[k] += __shfl_xor_sync(kFullWarp, sum[k], kTileChunks);  // the other row of the warp
      if (thread % 32 < kTileChunks) {
        sums[thread / 32][place.column + k] = sum[k];
      }
    }
  }
  __syncthreads();
  if constexpr (kSums) {
    if (thread < place.num_columns) {
      float total = 0.0F;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        total += sums[warp][thread];
      }
      partial[blockIdx.y * width + place.column_base + thread] = total;
    }
  }
  const int64_t pitch = transposed_pitch(rows);
  store_transposed<kSegments>(
      tile, kTile, place.num_rows, place.num_columns,
      static_cast<uint8_t*>(out.transposed) + place.column_base * pitch + place.row_base, pitch);
}

__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const uint8_t* __restrict__ in, int64_t rows, int64_t width,
                     uint8_t* __restrict__ out) {
  __shared__ alignas(16) uint8_t tile[kTile * kTile];
  const TilePlace place(rows, width);
  uint2 bytes[kTileLoads];
#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    if (place.has(i)) {
      bytes[i] = *reinterpret_cast<const uint2*>(in + place.element(i, width));
    }
  }
#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    if (place.has(i)) {
      put_in_tile(tile, place.row + i * kTileStep, place.column, bytes[i]);
    }
  }
  __syncthreads();
  const int64_t pitch = transposed_pitch(rows);
  store_transposed<kSegments>(tile, kTile, place.num_rows, place.num_columns,
                              out + place.column_base * pitch + place.row_base, pitch);
}

/// Tiles have 128 rows, and a grid at most 65,535 of them along y.
bool fits_tiles(int64_t rows, int64_t width) {
  return width % kTileSegment == 0 && rows <= int64_t{65535} * kTile;
}

dim3 tile_grid(int64_t rows, int64_t width) {
  return {static_cast<unsigned>(ceil_div(width, kTile)),
          static_cast<unsigned>(ceil_div(rows, kTile))};
}

// --- Scales --------------------------------------------------------------------------------------

/// A warp a tensor.
__global__ void __launch_bounds__(kThreads) update_scales_kernel(const ScaleUpdate call) {
  const int64_t tensor = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  if (tensor >= call.count) {
    return;
  }
  const float amax = call.amax[tensor];
  const bool is_finite = amax <= 3.402823466e38F;  // false for NaN, too
  float largest_seen = is_finite ? amax : 0.0F;
  if (call.window > 0) {
    // From the oldest to the newest, so that each piece is read before it is written over.
    float* const history = call.history + tensor * call.window;
    for (int64_t base = (call.window - 1) / 32 * 32; base >= 0; base -= 32) {
      const int64_t i = base + lane;
      float value = largest_seen;
      if (i > 0 && i < call.window) {
        value = history[i - 1];
      }
      __syncwarp();
      if (i < call.window) {
        history[i] = i == 0 ? (is_finite ? amax : 0.0F) : value;
        largest_seen = fmaxf(largest_seen, value);
      }
      __syncwarp();
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      largest_seen = fmaxf(largest_seen, __shfl_xor_sync(kFullWarp, largest_seen, offset));
    }
  }
  if (lane == 0) {
    float scale = call.scale[tensor];
    if (is_finite) {
      scale = next_scale(call.largest[tensor], largest_seen, call.margin, scale);
    }
    call.scale[tensor] = scale;
    call.inverse_scale[tensor] = 1.0F / scale;
    call.amax[tensor] = 0.0F;
  }
}

// --- Blocks --------------------------------------------------------------------------------------

/// A tile is one block of 128 x 128, or 128 blocks of a row each, and the same of the transposed.
template <typename T>
__global__ void __launch_bounds__(kThreads) block_quantise_kernel(const BlockQuantise call) {
  constexpr int kWarps = kThreads / 32;
  __shared__ alignas(16) uint8_t tile[kTile * kTile];
  __shared__ uint32_t magnitudes[kWarps][kTile];  // of columns, over a warp's rows
  __shared__ float column_scales[kTile];
  const TilePlace place(call.rows, call.width);
  const bool e5m2 = call.out_type == DType::kF8E5M2;
  const float largest = e5m2 ? kLargestE5M2 : kLargestE4M3;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row_block = blockIdx.y;
  const int64_t column_block = blockIdx.x;

  Packed<T, kChunk> packed[kTileLoads];
#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    packed[i] = {};
    if (place.has(i)) {
      packed[i] = load_packed<T, kChunk>(call.in, place.element(i, call.width));
    }
  }

  // Magnitudes: of the thread's rows and columns, then of its neighbours'. 16 lanes have a row; the
  // other 16 the next one.
  uint32_t row_magnitudes[kTileLoads] = {};
  uint32_t column_magnitudes[kChunk] = {};
#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    float values[kChunk];
    unpack<T, kChunk>(packed[i], values);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      row_magnitudes[i] = larger_magnitude(row_magnitudes[i], values[k]);
      column_magnitudes[k] = larger_magnitude(column_magnitudes[k], values[k]);
    }
#pragma unroll
    for (int offset = kTileChunks / 2; offset > 0; offset /= 2) {
      row_magnitudes[i] =
          max(row_magnitudes[i], __shfl_xor_sync(kFullWarp, row_magnitudes[i], offset));
    }
  }
#pragma unroll
  for (int k = 0; k < kChunk; ++k) {
    column_magnitudes[k] =
        max(column_magnitudes[k], __shfl_xor_sync(kFullWarp, column_magnitudes[k], kTileChunks));
    if (thread % 32 < kTileChunks) {
      magnitudes[thread / 32][place.column + k] = column_magnitudes[k];
    }
  }
  __syncthreads();

  float tile_scale = 0.0F;
  if (call.is_square) {
    uint32_t magnitude = 0;
    for (int i = thread % 32; i < kWarps * kTile; i += 32) {  // each warp for itself
      magnitude = max(magnitude, (&magnitudes[0][0])[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      magnitude = max(magnitude, __shfl_xor_sync(kFullWarp, magnitude, offset));
    }
    const BlockScale scale = block_scale(largest, __uint_as_float(magnitude));
    tile_scale = scale.scale;
    if (thread < 4) {  // the last tile of a row also clears the padding
      const int64_t row_factors = block_factors(1, call.width, true);
      const int64_t column_factors = block_factors(1, call.rows, true);
      if (call.data != nullptr &&
          (thread == 0 || (column_block + 1 == gridDim.x && column_block + thread < row_factors))) {
        call.factors[row_block * row_factors + column_block + thread] =
            thread == 0 ? scale.factor : 0.0F;
      }
      if (call.transposed != nullptr &&
          (thread == 0 || (row_block + 1 == gridDim.y && row_block + thread < column_factors))) {
        call.transposed_factors[column_block * column_factors + row_block + thread] =
            thread == 0 ? scale.factor : 0.0F;
      }
    }
  } else if (call.transposed != nullptr) {
    if (thread < place.num_columns) {
      uint32_t magnitude = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        magnitude = max(magnitude, magnitudes[warp][thread]);
      }
      const BlockScale scale = block_scale(largest, __uint_as_float(magnitude));
      column_scales[thread] = scale.scale;
      call.transposed_factors[row_block * call.width + place.column_base + thread] = scale.factor;
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < kTileLoads; ++i) {
    if (place.has(i)) {
      const int row = place.row + i * kTileStep;
      float values[kChunk];
      unpack<T, kChunk>(packed[i], values);
      uint2 bytes = {};
      if (call.is_square || call.data != nullptr) {
        const BlockScale row_scale = block_scale(largest, __uint_as_float(row_magnitudes[i]));
        bytes = quantise8(values, call.is_square ? tile_scale : row_scale.scale, e5m2);
        if (call.data != nullptr) {
          *reinterpret_cast<uint2*>(static_cast<uint8_t*>(call.data) +
                                    place.element(i, call.width)) = bytes;
          if (!call.is_square && thread % kTileChunks == 0) {
            call.factors[column_block * call.rows + place.row_base + row] = row_scale.factor;
          }
        }
      }
      if (call.transposed != nullptr) {
        if (!call.is_square) {
#pragma unroll
          for (int k = 0; k < kChunk; ++k) {
            values[k] *= column_scales[place.column + k];
          }
          bytes = quantise8(values, 1.0F, e5m2);
        }
        put_in_tile(tile, row, place.column, bytes);
      }
    }
  }
  if (call.transposed != nullptr) {
    __syncthreads();
    store_transposed<kSegments>(
        tile, kTile, place.num_rows, place.num_columns,
        static_cast<uint8_t*>(call.transposed) + place.column_base * call.rows + place.row_base,
        call.rows);
  }
}

}  // namespace

size_t quantise_workspace_bytes(int64_t rows, int64_t width) {
  return static_cast<size_t>(ceil_div(rows, kTile) * width) * sizeof(float);
}

cudaError_t quantise(const Quantise& call, void* workspace, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  const bool wants_sums = call.column_sums != nullptr;
  if (call.out.transposed == nullptr && wants_sums) {
    return cudaErrorInvalidValue;
  }
  const int64_t stride = call.row_stride == 0 ? call.width : call.row_stride;
  if (stride != call.width && (stride % kChunk != 0 || call.width % kChunk != 0)) {
    return cudaErrorInvalidValue;
  }
  if (call.out.transposed == nullptr) {
    return with_type(call.type,
                     [&](auto type) { return launch_array<decltype(type)>(call, stride, stream); });
  }
  if (!fits_tiles(call.rows, call.width) || !is_aligned_to<16>(call.in) ||
      !is_aligned_to<16>(call.out.data) || !is_aligned_to<16>(call.out.transposed)) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid = tile_grid(call.rows, call.width);
  auto* const partial = static_cast<float*>(workspace);
  const cudaError_t error = with_type(call.type, [&](auto type) {
    const auto kernel = wants_sums ? quantise_tile_kernel<decltype(type), true>
                                   : quantise_tile_kernel<decltype(type), false>;
    kernel<<<grid, kThreads, 0, stream>>>(call.in, call.rows, call.width, stride, call.out,
                                          partial);
    return cudaGetLastError();
  });
  if (error != cudaSuccess || !wants_sums) {
    return error;
  }
  return add_partial_sums(partial, grid.y, call.width, call.column_sums, stream);
}

cudaError_t transpose_bytes(const void* in, int64_t rows, int64_t width, void* out,
                            cudaStream_t stream) {
  if (rows == 0 || width == 0) {
    return cudaSuccess;
  }
  if (!fits_tiles(rows, width) || !is_aligned_to<16>(in) || !is_aligned_to<16>(out)) {
    return cudaErrorInvalidValue;
  }
  transpose_kernel<<<tile_grid(rows, width), kThreads, 0, stream>>>(
      static_cast<const uint8_t*>(in), rows, width, static_cast<uint8_t*>(out));
  return cudaGetLastError();
}

cudaError_t update_scales(const ScaleUpdate& call, cudaStream_t stream) {
  if (call.count == 0) {
    return cudaSuccess;
  }
  constexpr int64_t kTensors = kThreads / 32;
  const int64_t blocks = ceil_div(call.count, kTensors);
  update_scales_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t block_quantise(const BlockQuantise& call, cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  if (call.rows % kTileSegment != 0 || !fits_tiles(call.rows, call.width) ||
      !is_aligned_to<16>(call.in) || !is_aligned_to<16>(call.data) ||
      !is_aligned_to<16>(call.transposed)) {
    return cudaErrorInvalidValue;
  }
  return with_type(call.type, [&](auto type) {
    block_quantise_kernel<decltype(type)>
        <<<tile_grid(call.rows, call.width), kThreads, 0, stream>>>(call);
    return cudaGetLastError();
  });
}

}  // namespace kinora::kernels::cuda
