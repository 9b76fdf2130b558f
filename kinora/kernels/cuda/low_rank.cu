// The narrow products of low-rank updates (kernels/low_rank.h). All are bound by memory: the wide
// matrices x and dy are read as seldom as the sums allow.
//
//   low_kernel        low = x A^T: reads x once; and the copies of A and B, by blocks of their own
//   gradients_kernel  of dy: parts of dlow = scale dy B and of dy^T low, read together, once;
//                     of x, when dlow is complete: parts of x^T dlow
//   finish_*_kernel   add up the parts, in order; those of gradients for several linears at once
//
// low_kernel: a block's warps share its rows and take turns in their columns, kLowColumns at a
// time, and load the next ones meanwhile. A lane holds 16 adjacent bytes of a row, which is not
// where mma wants its columns; but a sum over columns may take them in any order, so long as both
// operands have the same one. With 32 rows a block A is read by half as many blocks as with 16: it
// comes from the L2 cache as often as there are blocks.
//
// gradients_kernel: a block has kColumns columns and walks down a range of rows, kRows at a time,
// which come into a ring in shared memory ahead of their use. Of such a tile [kRows, kColumns] its
// product with B (over the columns) leaves at once, that with low (over the rows) stays in
// registers. Chunks of 16 bytes are swizzled (chunk c of row r lies at c ^ r % 8), so that ldmatrix
// meets every bank once.
//
// Limits: low_rank_supported.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_ops.cuh"
#include "kinora/kernels/cuda/elements.cuh"
#include "kinora/kernels/cuda/low_rank.h"
#include "kinora/kernels/cuda/random.h"
#include "kinora/kernels/cuda/shared_memory.cuh"

namespace kinora::kernels::cuda {
namespace {

using attention::load_matrices;
using attention::load_transposed;
using attention::multiply_add16;
using attention::shared_base;

template <typename T>
using Tag = std::conditional_t<std::is_same_v<T, __half>, attention::F16, attention::Bf16>;

// --- low = x A^T ---------------------------------------------------------------------------------

constexpr int kLowWarps = 8;
constexpr int kLowThreads = 32 * kLowWarps;
constexpr int kLowColumns = 64;  // of a warp at once: a lane has two times 16 bytes
constexpr int kLowStep = kLowColumns * kLowWarps;

/// Higher ranks have more sums, of fewer rows.
template <int kTiles>
inline constexpr int kLowRowTiles = kTiles <= 4 ? 2 : 1;

__device__ __forceinline__ uint4 load16(const void* source) {
  return *static_cast<const uint4*>(source);
}

/// Chunk `i` of 8 elements: first those of B, if it is copied, then those of A.
template <typename T, int kTiles>
__device__ __forceinline__ void copy_chunk(const LowRankForward& call, int64_t i) {
  const int64_t of_b = call.behind != nullptr ? call.out * kTiles : 0;
  if (i < of_b) {
    const auto row = static_cast<unsigned>(i) / kTiles;
    const auto piece = static_cast<unsigned>(i) % kTiles;
    uint4 chunk = load16(static_cast<const T*>(call.b) + 8 * i);
    auto* const elements = reinterpret_cast<T*>(&chunk);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      elements[k] = from_float<T>(call.scale * to_float(elements[k]));
    }
    *reinterpret_cast<uint4*>(static_cast<T*>(call.behind) + row * call.weight_stride + 8 * piece) =
        chunk;
    return;
  }
  const auto chunks_a_row = static_cast<unsigned>(call.in / 8);
  const auto of_a = static_cast<unsigned>(i - of_b);
  const unsigned row = of_a / chunks_a_row;
  if (call.below != nullptr && row < 8 * kTiles) {
    *reinterpret_cast<uint4*>(static_cast<T*>(call.below) + row * call.weight_stride +
                              8 * (of_a % chunks_a_row)) =
        load16(static_cast<const T*>(call.a) + row * call.a_stride + 8 * (of_a % chunks_a_row));
  }
}

/// The first row_blocks blocks have 16 kLowRowTiles rows each, the others copy. kTiles: rank / 8.
template <typename T, int kTiles>
__global__ void __launch_bounds__(kLowThreads, 2)
    low_kernel(const LowRankForward call, unsigned row_blocks) {
  constexpr int kRank = 8 * kTiles;
  constexpr int kRowTiles = kLowRowTiles<kTiles>;
  constexpr int kRows = 16 * kRowTiles;
  if (blockIdx.x >= row_blocks) {
    copy_chunk<T, kTiles>(
        call, static_cast<int64_t>(blockIdx.x - row_blocks) * kLowThreads + threadIdx.x);
    return;
  }
  __shared__ float sums[kLowWarps][kRows][kRank];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const T* const x = static_cast<const T*>(call.x) + (first_row + g) * call.x_stride;
  const T* const a = static_cast<const T*>(call.a) + g * call.a_stride;
  // Rows g, g + 8, ... of columns at and at + 32.
  const auto load_x = [&](uint4(&to)[2][2 * kRowTiles], int64_t column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = column + 32 * half;
#pragma unroll
      for (int r = 0; r < 2 * kRowTiles; ++r) {
        const bool is_there = first_row + g + 8 * r < call.rows && at < call.in;
        to[half][r] = is_there ? load16(x + 8 * r * call.x_stride + at) : make_uint4(0, 0, 0, 0);
      }
    }
  };

  float c[kRowTiles][kTiles][4] = {};
  const int64_t begin = kLowColumns * warp + 8 * t;
  uint4 next[2][2 * kRowTiles];
  load_x(next, begin);
  for (int64_t column = begin; column - 8 * t < call.in; column += kLowStep) {
    uint4 now[2][2 * kRowTiles];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < 2 * kRowTiles; ++r) {
        now[half][r] = next[half][r];
      }
    }
    load_x(next, column + kLowStep);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = column + 32 * half;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 b =
            at < call.in ? load16(a + 8 * tile * call.a_stride + at) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4& upper = now[half][2 * r];
          const uint4& lower = now[half][2 * r + 1];
          const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y};
          const uint32_t second[4] = {upper.z, lower.z, upper.w, lower.w};
          multiply_add16<Tag<T>>(c[r][tile], first, b.x, b.y);
          multiply_add16<Tag<T>>(c[r][tile], second, b.z, b.w);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int place = 8 * tile + 2 * t;
      *reinterpret_cast<float2*>(&sums[warp][16 * r + g][place]) =
          make_float2(c[r][tile][0], c[r][tile][1]);
      *reinterpret_cast<float2*>(&sums[warp][16 * r + g + 8][place]) =
          make_float2(c[r][tile][2], c[r][tile][3]);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kRank; i += kLowThreads) {
    const int64_t row = first_row + i / kRank;
    if (row < call.rows) {
      float sum = 0.0F;
#pragma unroll
      for (int w = 0; w < kLowWarps; ++w) {
        sum += sums[w][i / kRank][i % kRank];
      }
      static_cast<T*>(call.low)[row * call.low_stride + i % kRank] = from_float<T>(sum);
    }
  }
}

// --- Gradients -----------------------------------------------------------------------------------

constexpr int kRows = 64;
constexpr int kColumns = 384;
constexpr int kThreads = kColumns;     // a warp has 32 columns
constexpr int kChunks = kColumns / 8;  // of 16 bytes in a row of a tile
// Of the product with B a warp has 16 rows, and the columns of its group.
constexpr int kRowTiles = kRows / 16;
constexpr int kGroups = kThreads / 32 / kRowTiles;
constexpr int kGroupColumns = kColumns / kGroups;
// What the ranges are made for: an H100 or H200, a block a multiprocessor. A constant, so that
// sums are the same everywhere.
constexpr int64_t kTargetBlocks = 132;

struct Parts {
  int64_t num_ranges;      // of rows
  int64_t rows_per_range;  // a multiple of kRows
  int64_t num_strips;      // of columns
};

Parts make_parts(int64_t rows, int64_t width) {
  Parts parts = {};
  parts.num_strips = ceil_div(width, kColumns);
  const int64_t wanted =
      std::clamp(kTargetBlocks / parts.num_strips, int64_t{1}, ceil_div(rows, kRows));
  parts.rows_per_range = ceil_div(ceil_div(rows, wanted), kRows) * kRows;
  parts.num_ranges = ceil_div(rows, parts.rows_per_range);
  return parts;
}

/// A matrix [rows, width], y, beside a narrow one [rows, rank].
struct Gradients {
  int64_t rows;
  int64_t width;
  const void* y;
  int64_t y_stride;
  const void* low;
  int64_t low_stride;
  const void* b;  // [width, rank], contiguous; null: its product is not wanted
  Parts parts;
  float* low_parts;   // [num_strips, rows, rank]: of y b
  float* grad_parts;  // [num_ranges, width, rank]: of y^T low
};

template <int kRank>
struct Shared {
  static constexpr int kStages = kRank > 32 ? 2 : 3;  // of the ring: what there is room for
  static constexpr int kStage = kRows * (kColumns + kRank) * 2;
  static constexpr int kB = kStages * kStage;  // where B's rows begin
  static constexpr int kSums = kB + kColumns * kRank * 2;
  static constexpr int kSumBytes = (kGroups - 1) * kRows * kRank * 4;
  static constexpr int kBytes = kSums + 2 * kSumBytes;  // of a step and of the one before
};

template <typename T, int kTiles>
__global__ void __launch_bounds__(kThreads) gradients_kernel(const Gradients call) {
  constexpr int kRank = 8 * kTiles;
  constexpr int kLowBytes = 2 * kRank;
  constexpr int kStages = Shared<kRank>::kStages;
  constexpr int kDepth = kGroupColumns / 16;
  constexpr bool kKeepsB = kTiles <= 2;  // in registers
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * call.parts.rows_per_range;
  const int64_t end_row = min(first_row + call.parts.rows_per_range, call.rows);
  const int steps = static_cast<int>(ceil_div(end_row - first_row, kRows));
  const bool wants_low = call.b != nullptr;

  const uint32_t base = shared_base();
  const uint32_t b_base = base + Shared<kRank>::kB;
  const uint32_t sum_base = base + Shared<kRank>::kSums;
  const auto stage = [&](int step) { return base + step % kStages * Shared<kRank>::kStage; };

  if (wants_low) {
    for (int i = thread; i < kColumns * kTiles; i += kThreads) {
      const int64_t column = first_column + i / kTiles;
      copy_async(b_base + 16 * i, static_cast<const T*>(call.b) + column * kRank + i % kTiles * 8,
                 column < call.width);
    }
  }
  const auto fetch = [&](int step) {
    if (step < steps) {
      const int64_t row0 = first_row + static_cast<int64_t>(step) * kRows;
      const uint32_t tile = stage(step);
#pragma unroll
      for (int i = thread; i < kRows * kChunks; i += kThreads) {
        const int r = i / kChunks;
        const int chunk = i % kChunks;
        const int64_t column = first_column + 8 * chunk;
        copy_async(tile + (r * kChunks + (chunk ^ (r & 7))) * 16,
                   static_cast<const T*>(call.y) + (row0 + r) * call.y_stride + column,
                   row0 + r < end_row && column < call.width);
      }
      for (int i = thread; i < kRows * kTiles; i += kThreads) {
        const int r = i / kTiles;
        copy_async(tile + kRows * kColumns * 2 + 16 * i,
                   static_cast<const T*>(call.low) + (row0 + r) * call.low_stride + i % kTiles * 8,
                   row0 + r < end_row);
      }
    }
    commit_copies();  // also where there is nothing: the counting goes on
  };
  for (int step = 0; step < kStages - 1; ++step) {
    fetch(step);
  }

  // Address of 16 bytes of the tile's row r, chunk c.
  const auto at = [&](uint32_t tile, int r, int c) {
    return tile + static_cast<uint32_t>((r * kChunks + (c ^ (r & 7))) * 16);
  };
  // Of y b a warp sums over the columns of its group, and those of the first group add up the
  // groups' sums: one step later, when a barrier has passed anyway.
  const int sum_row = 16 * (warp % kRowTiles);
  const int group = warp / kRowTiles;
  const auto load_b = [&](uint32_t(&b)[2], int k, int n) {
    load_transposed(b, b_base + (group * kGroupColumns + 16 * k + lane % 16) * kLowBytes + 16 * n);
  };
  const auto sums_of = [&](int step, int from, int n) {
    const int row = sum_row + lane / 4;
    return sum_base + step % 2 * Shared<kRank>::kSumBytes +
           static_cast<uint32_t>((((from - 1) * kRows + row) * kRank + 8 * n + lane % 4 * 2) * 4);
  };
  constexpr uint32_t kEightRows = 8 * kRank * 4;
  uint32_t kept_b[kKeepsB ? kDepth : 1][kTiles][2];
  float sum[kTiles][4];
  const auto write_sums = [&](int step) {
    const int64_t row = first_row + static_cast<int64_t>(step) * kRows + sum_row + lane / 4;
    float* const target = call.low_parts + (blockIdx.x * call.rows + row) * kRank + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int other = 1; other < kGroups; ++other) {
        const float2 upper = attention::load_shared_float2(sums_of(step, other, n));
        const float2 lower = attention::load_shared_float2(sums_of(step, other, n) + kEightRows);
        sum[n][0] += upper.x;
        sum[n][1] += upper.y;
        sum[n][2] += lower.x;
        sum[n][3] += lower.y;
      }
      if (row < end_row) {
        *reinterpret_cast<float2*>(target + 8 * n) = make_float2(sum[n][0], sum[n][1]);
      }
      if (row + 8 < end_row) {
        *reinterpret_cast<float2*>(target + 8 * kRank + 8 * n) = make_float2(sum[n][2], sum[n][3]);
      }
    }
  };

  float grad[2][kTiles][4] = {};  // 32 columns a warp, two tiles of 16
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there for all, and all are done with the one before
    fetch(step + kStages - 1);
    const uint32_t tile = stage(step);
    const uint32_t low = tile + kRows * kColumns * 2;
    if (kKeepsB && wants_low && step == 0) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          load_b(kept_b[kKeepsB ? k : 0][n], k, n);
        }
      }
    }
    if (wants_low && group == 0 && step > 0) {
      write_sums(step - 1);
    }

    // y^T low.
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t b[kTiles][2];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        load_transposed(b[n], low + (16 * k + lane % 16) * kLowBytes + 16 * n);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t a[4];
        load_transposed(
            a, at(tile, 16 * k + lane % 8 + lane / 16 * 8, 4 * warp + 2 * m + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          multiply_add16<Tag<T>>(grad[m][n], a, b[n][0], b[n][1]);
        }
      }
    }

    // y b.
    if (wants_low) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (float& element : sum[n]) {
          element = 0.0F;
        }
      }
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        const int chunk = group * (kGroupColumns / 8) + 2 * k;
        uint32_t a[4];
        load_matrices(a, at(tile, sum_row + lane % 16, chunk + lane / 16));
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if constexpr (kKeepsB) {
            multiply_add16<Tag<T>>(sum[n], a, kept_b[k][n][0], kept_b[k][n][1]);
          } else {
            uint32_t b[2];
            load_b(b, k, n);
            multiply_add16<Tag<T>>(sum[n], a, b[0], b[1]);
          }
        }
      }
      if (group > 0) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint32_t place = sums_of(step, group, n);
          attention::store_shared(place, sum[n][0]);
          attention::store_shared(place + 4, sum[n][1]);
          attention::store_shared(place + kEightRows, sum[n][2]);
          attention::store_shared(place + kEightRows + 4, sum[n][3]);
        }
      }
    }
  }
  if (wants_low) {
    __syncthreads();
    if (group == 0) {
      write_sums(steps - 1);
    }
  }

#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int64_t column = first_column + 32 * warp + 16 * m + lane / 4;
    float* const target =
        call.grad_parts + (blockIdx.y * call.width + column) * kRank + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (column < call.width) {
        *reinterpret_cast<float2*>(target + 8 * n) = make_float2(grad[m][n][0], grad[m][n][1]);
      }
      if (column + 8 < call.width) {
        *reinterpret_cast<float2*>(target + 8 * kRank + 8 * n) =
            make_float2(grad[m][n][2], grad[m][n][3]);
      }
    }
  }
}

constexpr int kFinishThreads = 256;
constexpr int kPartsAtOnce = 12;  // so many loads of a thread are under way

/// low[row, r] = scale * sum of its parts; four elements a thread.
template <typename T>
__global__ void __launch_bounds__(kFinishThreads)
    finish_low_kernel(const float* __restrict__ parts, int64_t num_parts, int64_t rows,
                      int64_t rank, float scale, T* __restrict__ low, int64_t stride) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kFinishThreads + threadIdx.x) * 4;
  if (i >= rows * rank) {
    return;
  }
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  for (int64_t first = 0; first < num_parts; first += kPartsAtOnce) {
    float4 quads[kPartsAtOnce];
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      quads[k] = first + k < num_parts
                     ? *reinterpret_cast<const float4*>(parts + (first + k) * rows * rank + i)
                     : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    }
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      const float4& quad = quads[k];
      sum = make_float4(sum.x + quad.x, sum.y + quad.y, sum.z + quad.z, sum.w + quad.w);
    }
  }
  T* const target = low + i / rank * stride + i % rank;
  target[0] = from_float<T>(scale * sum.x);
  target[1] = from_float<T>(scale * sum.y);
  target[2] = from_float<T>(scale * sum.z);
  target[3] = from_float<T>(scale * sum.w);
}

struct Finish {
  const float* a_parts;  // [a_ranges, in, rank]
  const float* b_parts;  // [b_ranges, out, rank]
  int64_t a_ranges;
  int64_t b_ranges;
  int64_t in;
  int64_t out;
  int64_t rank;
  float scale;    // of b's
  float* a_grad;  // [rank, in]
  int64_t a_grad_stride;
  float* b_grad;  // [out, rank]
};

struct Finishes {
  Finish calls[kMaxLowRankParts];
};

__global__ void __launch_bounds__(kFinishThreads)
    finish_grads_kernel(const __grid_constant__ Finishes finishes) {
  const Finish& call = finishes.calls[blockIdx.y];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFinishThreads + threadIdx.x;
  const int64_t b_size = call.out * call.rank;
  const int64_t a_size = call.in * call.rank;
  if (i >= a_size + b_size) {
    return;
  }
  const bool is_b = i < b_size;
  const int64_t element = is_b ? i : i - b_size;
  const float* const parts = (is_b ? call.b_parts : call.a_parts) + element;
  const int64_t size = is_b ? b_size : a_size;
  const int64_t count = is_b ? call.b_ranges : call.a_ranges;
  float sum = 0.0F;
  for (int64_t first = 0; first < count; first += kPartsAtOnce) {
    float values[kPartsAtOnce];
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      values[k] = first + k < count ? parts[(first + k) * size] : 0.0F;
    }
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      sum += values[k];
    }
  }
  if (is_b) {
    call.b_grad[element] += call.scale * sum;
  } else {
    call.a_grad[element % call.rank * call.a_grad_stride + element / call.rank] += sum;
  }
}

// --- Launchers -----------------------------------------------------------------------------------

/// Where the parts lie in the workspace, in floats.
struct Workspace {
  int64_t low = 0;
  int64_t b = 0;
  int64_t a = 0;
  int64_t size = 0;

  Workspace(int64_t rows, int64_t in, int64_t out, int64_t rank) {
    const Parts of_dy = make_parts(rows, out);
    b = of_dy.num_strips * rows * rank;
    a = b + of_dy.num_ranges * out * rank;
    size = a + make_parts(rows, in).num_ranges * in * rank;
  }
};

template <typename T, int kTiles>
cudaError_t launch_gradients(const Gradients& call, cudaStream_t stream) {
  constexpr int kBytes = Shared<8 * kTiles>::kBytes;
  const auto kernel = gradients_kernel<T, kTiles>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  kernel<<<dim3(static_cast<unsigned>(call.parts.num_strips),
                static_cast<unsigned>(call.parts.num_ranges)),
           kThreads, kBytes, stream>>>(call);
  return cudaGetLastError();
}

template <typename T, int kTiles>
cudaError_t launch_forward(const LowRankForward& call, cudaStream_t stream) {
  constexpr int kRows = 16 * kLowRowTiles<kTiles>;
  const int64_t row_blocks = call.low != nullptr ? ceil_div(call.rows, kRows) : 0;
  const int64_t chunks = (call.behind != nullptr ? call.out * kTiles : 0) +
                         (call.below != nullptr ? call.in * kTiles : 0);
  const int64_t blocks = row_blocks + ceil_div(chunks, kLowThreads);
  if (blocks > 0) {
    low_kernel<T, kTiles><<<static_cast<unsigned>(blocks), kLowThreads, 0, stream>>>(
        call, static_cast<unsigned>(row_blocks));
  }
  return cudaGetLastError();
}

template <typename T, int kTiles>
cudaError_t launch_backward(const LowRankBackward& call, void* workspace, cudaStream_t stream) {
  const Workspace places(call.rows, call.in, call.out, call.rank);
  auto* const parts = static_cast<float*>(workspace);
  const Gradients of_dy = {
      call.rows,          call.out,        call.dy, call.dy_stride,
      call.low,           call.low_stride, call.b,  make_parts(call.rows, call.out),
      parts + places.low, parts + places.b};
  cudaError_t error = launch_gradients<T, kTiles>(of_dy, stream);
  if (error != cudaSuccess) {
    return error;
  }
  const int64_t quads = ceil_div(call.rows * call.rank / 4, kFinishThreads);
  finish_low_kernel<T><<<static_cast<unsigned>(quads), kFinishThreads, 0, stream>>>(
      of_dy.low_parts, of_dy.parts.num_strips, call.rows, call.rank, call.scale,
      static_cast<T*>(call.dlow), call.dlow_stride);
  const Gradients of_x = {call.rows, call.in,          call.x,  call.x_stride,
                          call.dlow, call.dlow_stride, nullptr, make_parts(call.rows, call.in),
                          nullptr,   parts + places.a};
  return launch_gradients<T, kTiles>(of_x, stream);
}

/// Of shared memory that a rank's backward takes; 0 for one without kernels.
size_t backward_bytes(int64_t rank) {
  switch (rank) {
    case 8:
      return Shared<8>::kBytes;
    case 16:
      return Shared<16>::kBytes;
    case 32:
      return Shared<32>::kBytes;
    case 64:
      return Shared<64>::kBytes;
    default:
      return 0;
  }
}

/// Calls body with the 16-bit type and the number of tiles as types.
template <typename Body>
cudaError_t with_kernel(DType type, int64_t rank, const Body& body) {
  const auto with_tiles = [&](auto element) {
    using T = decltype(element);
    switch (rank) {
      case 8:
        return body(T{}, std::integral_constant<int, 1>{});
      case 16:
        return body(T{}, std::integral_constant<int, 2>{});
      case 32:
        return body(T{}, std::integral_constant<int, 4>{});
      default:
        return body(T{}, std::integral_constant<int, 8>{});
    }
  };
  return type == DType::kBF16 ? with_tiles(__nv_bfloat16{}) : with_tiles(__half{});
}

bool starts_on_16_bytes(const void* data, int64_t stride) {
  return is_aligned_to<16>(data) && stride % 8 == 0;
}

}  // namespace

bool low_rank_supported(DType type, int64_t in, int64_t out, int64_t rank) {
  const size_t bytes = backward_bytes(rank);
  return (type == DType::kBF16 || type == DType::kF16) && kernel_capability() >= 80 && bytes > 0 &&
         bytes <= max_shared_bytes() && in % 8 == 0 && out % 8 == 0;
}

cudaError_t low_rank_forward(const LowRankForward& call, cudaStream_t stream) {
  if (!low_rank_supported(call.type, call.in, call.out, call.rank) ||
      !starts_on_16_bytes(call.a, call.a_stride) || !is_aligned_to<16>(call.b) ||
      !starts_on_16_bytes(call.behind, call.weight_stride) ||
      !starts_on_16_bytes(call.below, call.weight_stride) ||
      (call.low != nullptr && !starts_on_16_bytes(call.x, call.x_stride))) {
    return cudaErrorInvalidValue;
  }
  if (call.rows == 0 && call.low != nullptr) {
    return cudaSuccess;
  }
  return with_kernel(call.type, call.rank, [&](auto element, auto tiles) {
    return launch_forward<decltype(element), decltype(tiles)::value>(call, stream);
  });
}

size_t low_rank_backward_workspace_bytes(int64_t rows, int64_t in, int64_t out, int64_t rank) {
  return static_cast<size_t>(Workspace(rows, in, out, rank).size) * sizeof(float);
}

cudaError_t low_rank_backward(const LowRankBackward& call, void* workspace, cudaStream_t stream) {
  if (!low_rank_supported(call.type, call.in, call.out, call.rank) ||
      !starts_on_16_bytes(call.dy, call.dy_stride) || !starts_on_16_bytes(call.x, call.x_stride) ||
      !starts_on_16_bytes(call.low, call.low_stride) ||
      !starts_on_16_bytes(call.dlow, call.dlow_stride) || !is_aligned_to<16>(call.b)) {
    return cudaErrorInvalidValue;
  }
  if (call.rows == 0) {
    return cudaSuccess;
  }
  return with_kernel(call.type, call.rank, [&](auto element, auto tiles) {
    return launch_backward<decltype(element), decltype(tiles)::value>(call, workspace, stream);
  });
}

cudaError_t low_rank_add_gradients(std::span<const LowRankParts> parts, cudaStream_t stream) {
  if (parts.empty() || parts.size() > kMaxLowRankParts) {
    return parts.empty() ? cudaSuccess : cudaErrorInvalidValue;
  }
  Finishes finishes = {};
  int64_t most = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LowRankBackward& call = parts[i].call;
    const Workspace places(call.rows, call.in, call.out, call.rank);
    const auto* const workspace = static_cast<const float*>(parts[i].workspace);
    finishes.calls[i] = {workspace + places.a,
                         workspace + places.b,
                         make_parts(call.rows, call.in).num_ranges,
                         make_parts(call.rows, call.out).num_ranges,
                         call.in,
                         call.out,
                         call.rank,
                         call.scale,
                         call.a_grad,
                         call.a_grad_stride,
                         call.b_grad};
    most = std::max(most, (call.in + call.out) * call.rank);
  }
  finish_grads_kernel<<<dim3(static_cast<unsigned>(ceil_div(most, kFinishThreads)),
                             static_cast<unsigned>(parts.size())),
                        kFinishThreads, 0, stream>>>(finishes);
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda
