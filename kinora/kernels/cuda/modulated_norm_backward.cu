// Backward of gate + residual + LayerNorm + modulate (modulated_norm.h):
//
//   xhat = (x_out - mean) * rstd,  g = dh * (1 + scale)
//   dx = dx_out + rstd * (g - mean_c(g) - xhat * mean_c(g * xhat)),  dbranch = gate * dx
//   per vector, over its rows: dshift, dscale, dgate, and the sum of dx
//
// Bound by memory: bf16 moves 12 bytes an element. The rows are cut into ranges, one a block, as
// many as the GPU holds at a time; a thread owns eight columns and walks down its range, so that
// the four sums over rows stay in its registers. The rows ahead are on their way into a ring in
// shared memory (cp.async), where each thread only reads what it asked for itself: no barrier is
// needed for them, and about 60 KB a block are in flight. The sums over a row need the whole block:
// they are taken of kRows rows at a time, with one barrier, in two buffers.
//
// A vector whose rows lie in one range is finished there. The sums of others go to the workspace (a
// range has at most two such: one begun before it, one that goes on behind it), and finish_kernel
// adds them in the order of the ranges. The ranges depend on the shapes and types alone: the same
// bits each time.
//
// Limits of the fast kernel: 16-byte alignment, a width that is a multiple of 8 and at most 4,096,
// and a ring of two rows fits into shared memory. All else: one kernel for the sums over rows,
// one for the rest, an element at a time.
//
// The transposed 8-bit copy of dbranch leaves through a tile of 32 rows in shared memory, where
// that fits beside the ring; else a further kernel makes it of the first copy.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/async_copy.cuh"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/modulated_norm.cuh"
#include "kinora/kernels/cuda/modulated_norm.h"
#include "kinora/kernels/cuda/modulated_norm_sums.cuh"
#include "kinora/kernels/elements.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kTileRows = 32;
constexpr int kAnyThreads = 256;
constexpr int kAnyColumns = 128;
constexpr size_t kSharedBytes = 227 * 1024;

// --- The fast kernel -----------------------------------------------------------------------------

/// Sums over a warp of kValues values at once: in each step half of the lanes go on with one half
/// of the values. Lane l gets the sum of value l / (32 / kValues).
template <int kValues>
__device__ __forceinline__ float warp_sums(float (&values)[kValues]) {
  const unsigned lane = threadIdx.x % 32;
  int mask = 16;
#pragma unroll
  for (int half = kValues / 2; half > 0; half /= 2) {
    const bool upper = (lane & static_cast<unsigned>(mask)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? values[i] : values[i + half];
      const float kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(kFullWarp, sent, mask);
    }
    mask /= 2;
  }
#pragma unroll
  for (; mask > 0; mask /= 2) {
    values[0] += __shfl_xor_sync(kFullWarp, values[0], mask);
  }
  return values[0];
}

/// Eight values of the piece (or the two pieces) at `source`.
template <typename T>
__device__ __forceinline__ void read_ring(const uint4* source, int piece_stride,
                                          float (&values)[kChunk]) {
  Packed<T, kChunk> packed;
#pragma unroll
  for (int i = 0; i < Packed<T, kChunk>::kWords / 4; ++i) {
    const uint4 quad = source[i * piece_stride];
    packed.word[4 * i] = quad.x;
    packed.word[4 * i + 1] = quad.y;
    packed.word[4 * i + 2] = quad.z;
    packed.word[4 * i + 3] = quad.w;
  }
  unpack<T, kChunk>(packed, values);
}

/// kRows: rows of one block reduction; the ring has twice as many.
template <typename T, int kRows>
__global__ void __launch_bounds__(kMaxThreads, 1)
    backward_kernel(const ResidualNormBackward call, const BackwardPlan plan,
                    float* __restrict__ partial) {
  constexpr int kRing = 2 * kRows;
  constexpr int kValues = 2 * kRows;
  constexpr int kPieces = sizeof(T) / 2;  // of 16 bytes, for eight values
  extern __shared__ uint4 ring[];
  __shared__ float4 row_sums[2][kMaxThreads / 32][ceil_div(kValues, 4)];

  const int width = static_cast<int>(call.width);
  const int num_active = width / kChunk;
  const int thread = static_cast<int>(threadIdx.x);
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const bool is_active = thread < num_active;
  const int64_t column = static_cast<int64_t>(thread) * kChunk;
  const bool has_dh = call.dh != nullptr;
  const bool has_dx_out = call.dx_out != nullptr;
  const bool has_branch = kernels::has_branch(call);
  const bool reads_branch = call.dgate != nullptr;
  const bool dh_is_float = call.dh_type == DType::kF32;
  const bool e5m2 = call.dbranch_fp8.type == DType::kF8E5M2;
  const bool wants_fp8 = call.dbranch_fp8.data != nullptr;
  const float fp8_scale =
      wants_fp8 && call.dbranch_fp8.scale != nullptr ? *call.dbranch_fp8.scale : 1.0F;
  const int64_t dbranch_stride = call.dbranch_stride > 0 ? call.dbranch_stride : call.width;

  // A row in the ring: dh, x_out, dx_out, branch, as far as they are there.
  const int dh_pieces = !has_dh ? 0 : (dh_is_float ? 2 : kPieces);
  const int x_piece = dh_pieces;
  const int dx_out_piece = x_piece + (has_dh ? kPieces : 0);
  const int branch_piece = dx_out_piece + (has_dx_out ? kPieces : 0);
  const int num_pieces = branch_piece + (reads_branch ? kPieces : 0);
  auto* const tile = reinterpret_cast<uint8_t*>(ring + kRing * num_pieces * num_active);

  const int64_t first = plan.ranges.begin(blockIdx.x);
  const int64_t end = plan.ranges.begin(static_cast<int64_t>(blockIdx.x) + 1);

  const auto slot = [&](int64_t row) {
    return ring + (static_cast<int>(row - first) & (kRing - 1)) * num_pieces * num_active + thread;
  };
  const auto prefetch = [&](int64_t row) {
    if (is_active && row < end) {
      uint4* const target = slot(row);
      const int64_t element = row * width + column;
      const auto copy = [&](const void* array, int piece, int pieces) {
        const char* source = static_cast<const char*>(array) + element * pieces * 2;
        for (int i = 0; i < pieces; ++i) {
          copy_async(target + (piece + i) * num_active, source + 16 * i);
        }
      };
      if (has_dh) {
        copy(call.dh, 0, dh_pieces);
        copy(call.x_out, x_piece, kPieces);
      }
      if (has_dx_out) {
        copy(call.dx_out, dx_out_piece, kPieces);
      }
      if (reads_branch) {
        copy(call.branch, branch_piece, kPieces);
      }
    }
    commit_copies();  // also where there is nothing: the counting goes on
  };
  for (int i = 0; i < kRing; ++i) {
    prefetch(first + i);
  }

  // Lane l has the statistics of row l % kRows of the next rows.
  float mean_ahead = 0.0F;
  float rstd_ahead = 0.0F;
  const auto prefetch_statistics = [&](int64_t row) {
    const int64_t lane_row = row + thread % kRows;
    if (has_dh && lane_row < end) {
      mean_ahead = call.mean[lane_row];
      rstd_ahead = call.rstd[lane_row];
    }
  };
  prefetch_statistics(first);

  const float inverse_width = 1.0F / static_cast<float>(width);
  uint32_t magnitude = 0;
  int buffer = 0;
  int64_t row = first;
  while (row < end) {
    const int64_t vector = plan.rows_of_vectors.of(row);
    const int64_t vector_begin = plan.rows_of_vectors.begin(vector);
    const int64_t vector_end = min(plan.rows_of_vectors.begin(vector + 1), call.rows);
    const int64_t segment_begin = row;
    const int64_t segment_end = min(vector_end, end);

    float gate[kChunk] = {};
    float factor[kChunk] = {};  // 1 + scale
    float sums[kQuantities][kChunk] = {};
    if (is_active) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (has_branch) {
          const float4 quad =
              load_vector4(call.gate, vector, column + 4 * half, plan.vectors_aligned);
          gate[4 * half] = quad.x;
          gate[4 * half + 1] = quad.y;
          gate[4 * half + 2] = quad.z;
          gate[4 * half + 3] = quad.w;
        }
        if (has_dh) {
          const float4 quad =
              load_vector4(call.scale, vector, column + 4 * half, plan.vectors_aligned);
          factor[4 * half] = 1.0F + quad.x;
          factor[4 * half + 1] = 1.0F + quad.y;
          factor[4 * half + 2] = 1.0F + quad.z;
          factor[4 * half + 3] = 1.0F + quad.w;
        }
      }
    }

    while (row < segment_end) {
      int64_t group_end = min(segment_end, row + kRows);
      if (plan.tile_pitch > 0) {
        group_end = min(group_end, first + ((row - first) / kTileRows + 1) * kTileRows);
      }
      const int count = static_cast<int>(group_end - row);
      wait_copies<kRing - kRows>();

      float mean[kRows];
      float rstd[kRows];
      float totals[kValues] = {};  // of g and g * xhat, of each row
      if (has_dh) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          mean[r] = __shfl_sync(kFullWarp, mean_ahead, r);
          rstd[r] = __shfl_sync(kFullWarp, rstd_ahead, r);
          if (r < count && is_active) {
            const uint4* const source = slot(row + r);
            float dh[kChunk];
            float x[kChunk];
            if (dh_is_float) {
              read_ring<float>(source, num_active, dh);
            } else {
              read_ring<T>(source, num_active, dh);
            }
            read_ring<T>(source + x_piece * num_active, num_active, x);
#pragma unroll
            for (int k = 0; k < kChunk; ++k) {
              const float xhat = (x[k] - mean[r]) * rstd[r];
              const float g = dh[k] * factor[k];
              totals[2 * r] += g;
              totals[2 * r + 1] += g * xhat;
              sums[0][k] += dh[k];
              sums[1][k] += dh[k] * xhat;
            }
          }
        }
        prefetch_statistics(row + count);

        const float warp_total = warp_sums<kValues>(totals);
        constexpr int kLanesPerValue = 32 / kValues;
        if (thread % kLanesPerValue == 0) {
          reinterpret_cast<float*>(row_sums[buffer][thread / 32])[thread % 32 / kLanesPerValue] =
              warp_total;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          totals[i] = 0.0F;
        }
        for (int warp = 0; warp < num_warps; ++warp) {
#pragma unroll
          for (int i = 0; i < kValues; i += 4) {
            const float4 quad = row_sums[buffer][warp][i / 4];
            totals[i] += quad.x;
            totals[i + 1] += quad.y;
            if constexpr (kValues > 2) {
              totals[i + 2] += quad.z;
              totals[i + 3] += quad.w;
            }
          }
        }
        buffer ^= 1;
      }

#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < count) {
          if (is_active) {
            const uint4* const source = slot(row + r);
            const int64_t place = (row + r) * width + column;
            float dx[kChunk] = {};
            if (has_dx_out) {
              read_ring<T>(source + dx_out_piece * num_active, num_active, dx);
            }
            if (has_dh) {
              float dh[kChunk];
              float x[kChunk];
              if (dh_is_float) {
                read_ring<float>(source, num_active, dh);
              } else {
                read_ring<T>(source, num_active, dh);
              }
              read_ring<T>(source + x_piece * num_active, num_active, x);
              const float mean_g = call.centres ? totals[2 * r] * inverse_width : 0.0F;
              const float mean_gx = totals[2 * r + 1] * inverse_width;
#pragma unroll
              for (int k = 0; k < kChunk; ++k) {
                const float xhat = (x[k] - mean[r]) * rstd[r];
                dx[k] += rstd[r] * (dh[k] * factor[k] - mean_g - xhat * mean_gx);
              }
            }
            if (call.dx != nullptr) {
              store_floats<T, kChunk>(call.dx, place, kChunk, true, dx);
            }
            if (has_branch) {
              if (reads_branch) {
                float branch[kChunk];
                read_ring<T>(source + branch_piece * num_active, num_active, branch);
#pragma unroll
                for (int k = 0; k < kChunk; ++k) {
                  sums[2][k] += branch[k] * dx[k];
                }
              }
#pragma unroll
              for (int k = 0; k < kChunk; ++k) {
                sums[3][k] += dx[k];
                dx[k] *= gate[k];
              }
              if (call.dbranch != nullptr) {
                store_floats<T, kChunk>(call.dbranch, (row + r) * dbranch_stride + column, kChunk,
                                        true, dx);
              }
              if (call.dbranch_fp8.amax != nullptr) {
#pragma unroll
                for (int k = 0; k < kChunk; ++k) {
                  magnitude = larger_magnitude(magnitude, dx[k]);
                }
              }
              if (wants_fp8) {
                const uint2 bytes = quantise8(dx, fp8_scale, e5m2);
                if (call.dbranch_fp8.data != nullptr) {
                  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(call.dbranch_fp8.data) + place) =
                      bytes;
                }
                if (plan.tile_pitch > 0) {
                  const int offset = tile_offset<kTileRows / kTileSegment>(
                      plan.tile_pitch, static_cast<int>((row + r - first) % kTileRows),
                      static_cast<int>(column));
                  *reinterpret_cast<uint2*>(tile + offset) = bytes;
                }
              }
            }
          }
          prefetch(row + r + kRing);
        }
      }
      row = group_end;

      if (plan.tile_pitch > 0 && ((row - first) % kTileRows == 0 || row == end)) {
        __syncthreads();
        const int64_t tile_begin = first + (row - 1 - first) / kTileRows * kTileRows;
        store_transposed<kTileRows / kTileSegment>(
            tile, plan.tile_pitch, static_cast<int>(row - tile_begin), width,
            static_cast<uint8_t*>(call.dbranch_fp8.transposed) + tile_begin,
            transposed_pitch(call.rows));
        if (!has_dh) {
          __syncthreads();  // else the next rows' own barrier comes before they write to the tile
        }
      }
    }

    if (is_active) {
      const bool is_whole = segment_begin == vector_begin && segment_end == vector_end;
      const int partial_slot = segment_begin == first ? 0 : 1;
#pragma unroll
      for (int quantity = 0; quantity < kQuantities; ++quantity) {
        if (is_sum_wanted(call, quantity)) {
          float* target =
              partial + partial_offset(plan, blockIdx.x, partial_slot, quantity) + column;
          bool is_aligned = true;
          if (is_whole) {
            target = sum_target(call, quantity, vector, column);
            is_aligned = plan.sums_aligned;
            if (quantity == 3) {
#pragma unroll
              for (int k = 0; k < kChunk; ++k) {
                sums[3][k] *= gate[k];
              }
            }
          }
          store_floats<float, kChunk>(target, 0, kChunk, is_aligned, sums[quantity]);
        }
      }
    }
  }
  if (call.dbranch_fp8.amax != nullptr) {
    record_warp_amax(call.dbranch_fp8.amax, magnitude);
  }
}

// --- Any width and alignment ---------------------------------------------------------------------

/// row_sums[row] = (mean of g, mean of g * xhat); a block a row.
template <typename T>
__global__ void __launch_bounds__(kAnyThreads)
    any_row_sums_kernel(const ResidualNormBackward call, float2* __restrict__ row_sums) {
  __shared__ float scratch[kAnyThreads / 32];
  const int64_t width = call.width;
  const bool dh_is_float = call.dh_type == DType::kF32;
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t vector = call.rows_of_vectors.of(row);
    const float mean = call.mean[row];
    const float rstd = call.rstd[row];
    float sum_g = 0.0F;
    float sum_gx = 0.0F;
    for (int64_t c = threadIdx.x; c < width; c += kAnyThreads) {
      const int64_t i = row * width + c;
      const float dh = dh_is_float ? static_cast<const float*>(call.dh)[i]
                                   : to_float(static_cast<const T*>(call.dh)[i]);
      const float xhat = (to_float(static_cast<const T*>(call.x_out)[i]) - mean) * rstd;
      const float g = dh * (1.0F + vector_element(call.scale, vector, c));
      sum_g += g;
      sum_gx += g * xhat;
    }
    sum_g = block_sum(sum_g, scratch);
    sum_gx = block_sum(sum_gx, scratch);
    if (threadIdx.x == 0) {
      row_sums[row] = make_float2(call.centres ? sum_g / static_cast<float>(width) : 0.0F,
                                  sum_gx / static_cast<float>(width));
    }
  }
}

/// A range of rows and kAnyColumns columns a block, one column a thread.
template <typename T>
__global__ void __launch_bounds__(kAnyColumns)
    any_columns_kernel(const ResidualNormBackward call, const BackwardPlan plan,
                       const float2* __restrict__ row_sums, float* __restrict__ partial) {
  const int64_t width = call.width;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kAnyColumns + threadIdx.x;
  const bool dh_is_float = call.dh_type == DType::kF32;
  const bool wants_fp8 = call.dbranch_fp8.data != nullptr;
  const float fp8_scale =
      wants_fp8 && call.dbranch_fp8.scale != nullptr ? *call.dbranch_fp8.scale : 1.0F;
  const int64_t dbranch_stride = call.dbranch_stride > 0 ? call.dbranch_stride : call.width;
  const int64_t first = plan.ranges.begin(blockIdx.x);
  const int64_t end = plan.ranges.begin(static_cast<int64_t>(blockIdx.x) + 1);
  uint32_t magnitude = 0;
  int64_t row = column < width ? first : end;
  while (row < end) {
    const int64_t vector = plan.rows_of_vectors.of(row);
    const int64_t vector_begin = plan.rows_of_vectors.begin(vector);
    const int64_t vector_end = min(plan.rows_of_vectors.begin(vector + 1), call.rows);
    const int64_t segment_begin = row;
    const int64_t segment_end = min(vector_end, end);
    const float gate = has_branch(call) ? vector_element(call.gate, vector, column) : 0.0F;
    const float factor =
        call.dh == nullptr ? 0.0F : 1.0F + vector_element(call.scale, vector, column);
    float sums[kQuantities] = {};
    for (; row < segment_end; ++row) {
      const int64_t i = row * width + column;
      float dx = 0.0F;
      if (call.dh != nullptr) {
        const float dh = dh_is_float ? static_cast<const float*>(call.dh)[i]
                                     : to_float(static_cast<const T*>(call.dh)[i]);
        const float rstd = call.rstd[row];
        const float xhat = (to_float(static_cast<const T*>(call.x_out)[i]) - call.mean[row]) * rstd;
        const float2 means = row_sums[row];
        dx = rstd * (dh * factor - means.x - xhat * means.y);
        sums[0] += dh;
        sums[1] += dh * xhat;
      }
      if (call.dx_out != nullptr) {
        dx += to_float(static_cast<const T*>(call.dx_out)[i]);
      }
      if (call.dx != nullptr) {
        static_cast<T*>(call.dx)[i] = from_float<T>(dx);
      }
      if (has_branch(call)) {
        if (call.dgate != nullptr) {
          sums[2] += to_float(static_cast<const T*>(call.branch)[i]) * dx;
        }
        sums[3] += dx;
        const float dbranch = gate * dx;
        magnitude = larger_magnitude(magnitude, dbranch);
        if (call.dbranch != nullptr) {
          static_cast<T*>(call.dbranch)[row * dbranch_stride + column] = from_float<T>(dbranch);
        }
        if (wants_fp8) {
          static_cast<uint8_t*>(call.dbranch_fp8.data)[i] = static_cast<uint8_t>(quantise_word(
              dbranch, 0.0F, 0.0F, 0.0F, fp8_scale, call.dbranch_fp8.type == DType::kF8E5M2));
        }
      }
    }
    const bool is_whole = segment_begin == vector_begin && segment_end == vector_end;
    const int slot = segment_begin == first ? 0 : 1;
#pragma unroll
    for (int quantity = 0; quantity < kQuantities; ++quantity) {
      if (is_sum_wanted(call, quantity)) {
        if (is_whole) {
          *sum_target(call, quantity, vector, column) =
              quantity == 3 ? gate * sums[quantity] : sums[quantity];
        } else {
          partial[partial_offset(plan, blockIdx.x, slot, quantity) + column] = sums[quantity];
        }
      }
    }
  }
  if (call.dbranch_fp8.amax != nullptr) {
    record_warp_amax(call.dbranch_fp8.amax, magnitude);
  }
}

// --- Launchers -----------------------------------------------------------------------------------

cudaError_t transpose_copy(const ResidualNormBackward& call, cudaStream_t stream) {
  return transpose_bytes(call.dbranch_fp8.data, call.rows, call.width, call.dbranch_fp8.transposed,
                         stream);
}

template <typename T>
cudaError_t launch_any(const ResidualNormBackward& call, void* workspace, cudaStream_t stream) {
  constexpr int64_t kBlocks = 4096;
  BackwardPlan plan = make_plan(call);
  const int64_t column_blocks = ceil_div(call.width, kAnyColumns);
  plan.ranges = make_ranges(call.rows, call.width, kUnit, kBlocks / column_blocks);
  auto* const partial = static_cast<float*>(workspace);
  auto* const row_sums = reinterpret_cast<float2*>(static_cast<char*>(workspace) +
                                                   partial_bytes(call.rows, call.width));
  if (call.dh != nullptr) {
    any_row_sums_kernel<T>
        <<<static_cast<unsigned>(std::min(call.rows, kBlocks)), kAnyThreads, 0, stream>>>(call,
                                                                                          row_sums);
  }
  any_columns_kernel<T>
      <<<dim3(static_cast<unsigned>(plan.ranges.num_ranges), static_cast<unsigned>(column_blocks)),
         kAnyColumns, 0, stream>>>(call, plan, row_sums, partial);
  const cudaError_t error = finish(call, plan, partial, stream);
  if (error == cudaSuccess && call.dbranch_fp8.transposed != nullptr) {
    return transpose_copy(call, stream);
  }
  return error;
}

/// Bytes of the ring for kRows rows a reduction.
template <typename T>
size_t ring_bytes(const ResidualNormBackward& call, int rows) {
  size_t row_bytes = 0;  // of one column
  if (call.dh != nullptr) {
    row_bytes += (call.dh_type == DType::kF32 ? 4 : sizeof(T)) + sizeof(T);
  }
  row_bytes += call.dx_out != nullptr ? sizeof(T) : 0;
  row_bytes += call.dgate != nullptr ? sizeof(T) : 0;
  return static_cast<size_t>(2 * rows * call.width) * row_bytes;
}

constexpr size_t kStaticBytes = 2048;  // row_sums, and what the system takes of each block

template <typename T, int kRows>
cudaError_t launch_ring(const ResidualNormBackward& call, void* workspace, size_t max_bytes,
                        cudaStream_t stream) {
  constexpr int64_t kManyRows = 8192;
  BackwardPlan plan = make_plan(call);
  size_t shared_bytes = ring_bytes<T>(call, kRows);
  int64_t unit = kUnit;
  if (call.dbranch_fp8.transposed != nullptr) {
    const int pitch = tile_pitch(static_cast<int>(call.width));
    const size_t with_tile = shared_bytes + static_cast<size_t>(kTileRows * pitch);
    if (with_tile + kStaticBytes <= max_bytes) {
      plan.tile_pitch = pitch;
      shared_bytes = with_tile;
      unit = call.rows >= kManyRows ? kTileRows : kTileSegment;
    }
  }
  const int64_t threads = num_threads(call.width);
  const int64_t blocks =
      std::min(kRegisters / (128 * threads),
               static_cast<int64_t>(kSharedBytes / (shared_bytes + kStaticBytes)));
  plan.ranges =
      make_ranges(call.rows, call.width, unit, kMultiprocessors * std::max<int64_t>(blocks, 1));

  const auto kernel = backward_kernel<T, kRows>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes));
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != cudaSuccess) {
    return error;
  }
  auto* const partial = static_cast<float*>(workspace);
  kernel<<<static_cast<unsigned>(plan.ranges.num_ranges), static_cast<unsigned>(threads),
           shared_bytes, stream>>>(call, plan, partial);
  error = finish(call, plan, partial, stream);
  if (error == cudaSuccess && call.dbranch_fp8.transposed != nullptr && plan.tile_pitch == 0) {
    return transpose_copy(call, stream);
  }
  return error;
}

bool is_aligned_call(const ResidualNormBackward& call, const void* workspace) {
  return call.width % kChunk == 0 && call.width <= kMaxThreads * kChunk &&
         is_aligned_to<16>(call.dh) && is_aligned_to<16>(call.dx_out) &&
         is_aligned_to<16>(call.x_out) && is_aligned_to<16>(call.branch) &&
         is_aligned_to<16>(call.dx) && is_aligned_to<16>(call.dbranch) &&
         call.dbranch_stride % kChunk == 0 && is_aligned_to<8>(call.dbranch_fp8.data) &&
         is_aligned_to<16>(workspace);
}

template <typename T>
cudaError_t launch_backward(const ResidualNormBackward& call, void* workspace,
                            cudaStream_t stream) {
  constexpr int kRows = sizeof(T) == 2 ? 4 : 2;
  if (is_aligned_call(call, workspace)) {
    const size_t max_bytes = max_shared_bytes();
    if (ring_bytes<T>(call, kRows) + kStaticBytes <= max_bytes) {
      return launch_ring<T, kRows>(call, workspace, max_bytes, stream);
    }
    if (ring_bytes<T>(call, kRows / 2) + kStaticBytes <= max_bytes) {
      return launch_ring<T, kRows / 2>(call, workspace, max_bytes, stream);
    }
  }
  return launch_any<T>(call, workspace, stream);
}

}  // namespace

size_t residual_norm_backward_workspace_bytes(int64_t rows, int64_t width) {
  return partial_bytes(rows, width) + static_cast<size_t>(rows) * sizeof(float2);
}

cudaError_t residual_norm_backward(const ResidualNormBackward& call, void* workspace,
                                   cudaStream_t stream) {
  if (call.rows == 0 || call.width == 0) {
    return cudaSuccess;
  }
  const bool has_norm_outputs = call.dshift != nullptr || call.dscale != nullptr;
  const Fp8Output& fp8 = call.dbranch_fp8;
  if ((call.dh_type != call.type && call.dh_type != DType::kF32) ||
      (call.branch == nullptr && call.dgate != nullptr) ||
      (call.dh == nullptr && has_norm_outputs) ||
      (fp8.transposed != nullptr && (fp8.data == nullptr || call.width % kTileSegment != 0 ||
                                     !is_aligned_to<16>(fp8.transposed)))) {
    return cudaErrorInvalidValue;
  }
  return with_type(call.type, [&](auto type) {
    return launch_backward<decltype(type)>(call, workspace, stream);
  });
}

}  // namespace kinora::kernels::cuda
