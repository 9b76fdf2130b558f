#pragma once

#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/modulated_norm.cuh"

/// How modulated_norm_backward.cu cuts rows into ranges, and how the sums of a vector whose rows
/// lie in several of them come together. A range leaves at most two such sums in the workspace: of
/// the vector that began before it (slot 0) and of the one that goes on behind it (slot 1).
namespace kinora::kernels::cuda {
namespace {

constexpr int kMaxThreads = 512;  // so that a thread may have 128 registers
constexpr int kQuantities = 4;    // dshift, dscale, dgate, sum of dx
constexpr int kFinishColumns = 128;
// What the ranges are made for: an H100 or H200. Constants, so that sums are the same everywhere.
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kRegisters = 65536;
constexpr int64_t kUnit = 4;  // rows: ranges are multiples of it

struct RowRanges {
  int64_t rows;
  int64_t unit;       // rows; ranges begin at multiples of it
  int64_t num_units;  // at least num_ranges
  int64_t num_ranges;

  [[nodiscard]] __host__ __device__ int64_t begin(int64_t range) const {
    const int64_t row = num_units * range / num_ranges * unit;
    return row < rows ? row : rows;
  }
  /// The range that has a row: the last one that begins at or before it.
  [[nodiscard]] __host__ __device__ int64_t range_of(int64_t row) const {
    return ((row / unit + 1) * num_ranges - 1) / num_units;
  }
};

struct BackwardPlan {
  RowRanges ranges;
  VectorRows rows_of_vectors;
  int64_t partial_pitch;  // floats
  bool vectors_aligned;   // gate and scale
  bool sums_aligned;      // dshift, dscale, dgate, dbranch_sum
  int tile_pitch;         // 0: no tile
};

/// Where one of the four sums of a range's first (slot 0) or last (slot 1) vector lies.
__host__ __device__ inline int64_t partial_offset(const BackwardPlan& plan, int64_t range, int slot,
                                                  int quantity) {
  return ((range * 2 + slot) * kQuantities + quantity) * plan.partial_pitch;
}

__device__ inline bool is_sum_wanted(const ResidualNormBackward& call, int quantity) {
  switch (quantity) {
    case 0:
      return call.dshift != nullptr;
    case 1:
      return call.dscale != nullptr;
    case 2:
      return call.dgate != nullptr;
    default:
      return call.dbranch_sum != nullptr;
  }
}

/// Where the finished sum of `column` goes.
__device__ inline float* sum_target(const ResidualNormBackward& call, int quantity, int64_t vector,
                                    int64_t column) {
  switch (quantity) {
    case 0:
      return call.dshift + vector * call.dvector_stride + column;
    case 1:
      return call.dscale + vector * call.dvector_stride + column;
    case 2:
      return call.dgate + vector * call.dvector_stride + column;
    default:
      return call.dbranch_sum + vector * call.width + column;
  }
}

/// Threads: 32 (four columns each) x 4 quantities x groups; a group adds every groups-th range.
__global__ void __launch_bounds__(1024)
    finish_kernel(const ResidualNormBackward call, const BackwardPlan plan, bool is_by_vector,
                  const float* __restrict__ partial) {
  __shared__ float4 scratch[1024];
  const RowRanges& ranges = plan.ranges;
  int64_t vector = blockIdx.x;
  int64_t first_range = blockIdx.x;
  if (is_by_vector) {
    first_range = ranges.range_of(plan.rows_of_vectors.begin(vector));
  } else {  // the vector of the range's last row, if it began there
    vector = plan.rows_of_vectors.of(ranges.begin(first_range + 1) - 1);
  }
  const int64_t vector_begin = plan.rows_of_vectors.begin(vector);
  const int64_t vector_end = min(plan.rows_of_vectors.begin(vector + 1), call.rows);
  if (vector_begin < ranges.begin(first_range) || vector_end <= ranges.begin(first_range + 1)) {
    return;
  }
  const int64_t last_range = ranges.range_of(vector_end - 1);

  const int thread = static_cast<int>(threadIdx.x);
  const int quantity = thread / 32 % kQuantities;
  const int group = thread / kFinishColumns;
  const int num_groups = static_cast<int>(blockDim.x) / kFinishColumns;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + thread % 32) * 4;
  const bool is_wanted_here = column < call.width && is_sum_wanted(call, quantity);
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (is_wanted_here) {
    for (int64_t range = first_range + group; range <= last_range; range += num_groups) {
      const int slot = ranges.begin(range) >= vector_begin ? 0 : 1;
      const float4 quad = *reinterpret_cast<const float4*>(
          partial + partial_offset(plan, range, slot, quantity) + column);
      sum = make_float4(sum.x + quad.x, sum.y + quad.y, sum.z + quad.z, sum.w + quad.w);
    }
  }
  scratch[thread] = sum;
  __syncthreads();
  if (group > 0 || !is_wanted_here) {
    return;
  }
  for (int other = 1; other < num_groups; ++other) {
    const float4 quad = scratch[thread + other * kFinishColumns];
    sum = make_float4(sum.x + quad.x, sum.y + quad.y, sum.z + quad.z, sum.w + quad.w);
  }
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (column + k < call.width) {
      const float gate = quantity == 3 ? vector_element(call.gate, vector, column + k) : 1.0F;
      *sum_target(call, quantity, vector, column + k) = values[k] * gate;
    }
  }
}

int64_t num_threads(int64_t width) {
  return std::min<int64_t>(round_up(ceil_div(width, kChunk), 32), kMaxThreads);
}

/// The most ranges that rows of this width are cut into.
int64_t max_ranges(int64_t rows, int64_t width) {
  const int64_t blocks = std::max<int64_t>(kRegisters / (128 * num_threads(width)), 1);
  return std::clamp<int64_t>(ceil_div(rows, kUnit), 1, kMultiprocessors * blocks);
}

int64_t partial_pitch(int64_t width) {
  return round_up(width, 4);
}

size_t partial_bytes(int64_t rows, int64_t width) {
  return static_cast<size_t>(max_ranges(rows, width) * 2 * kQuantities * partial_pitch(width)) *
         sizeof(float);
}

/// As many ranges as wanted; few rows: four a range until every multiprocessor has one, then eight.
RowRanges make_ranges(int64_t rows, int64_t width, int64_t unit, int64_t wanted) {
  const int64_t num_units = ceil_div(rows, unit);
  const int64_t enough =
      std::max(std::min(ceil_div(rows, kUnit), kMultiprocessors), rows / (2 * kUnit));
  const int64_t count = std::min({wanted, enough, max_ranges(rows, width), num_units});
  return {rows, unit, num_units, std::max<int64_t>(count, 1)};
}

/// Whether some vector's rows lie in more than one range.
bool needs_finish(const ResidualNormBackward& call, const BackwardPlan& plan) {
  if (call.dshift == nullptr && call.dscale == nullptr && call.dgate == nullptr &&
      call.dbranch_sum == nullptr) {
    return false;
  }
  for (int64_t range = 1; range < plan.ranges.num_ranges; ++range) {
    const int64_t row = plan.ranges.begin(range);
    if (plan.rows_of_vectors.begin(plan.rows_of_vectors.of(row)) != row) {
      return true;
    }
  }
  return false;
}

cudaError_t finish(const ResidualNormBackward& call, const BackwardPlan& plan, const float* partial,
                   cudaStream_t stream) {
  if (needs_finish(call, plan)) {
    const int64_t vectors = plan.rows_of_vectors.count(call.rows);
    const bool is_by_vector = vectors < plan.ranges.num_ranges;
    const int64_t blocks = is_by_vector ? vectors : plan.ranges.num_ranges - 1;
    const int64_t column_blocks = ceil_div(call.width, kFinishColumns);
    // Few vectors have many ranges each.
    const unsigned groups = vectors * 8 <= plan.ranges.num_ranges ? 8 : 2;
    finish_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(column_blocks)),
                    groups * kFinishColumns, 0, stream>>>(call, plan, is_by_vector, partial);
  }
  return cudaGetLastError();
}

BackwardPlan make_plan(const ResidualNormBackward& call) {
  BackwardPlan plan = {};
  plan.rows_of_vectors = rows_of_vectors(call);
  plan.partial_pitch = partial_pitch(call.width);
  plan.vectors_aligned = (!has_branch(call) || is_aligned_view(call.gate)) &&
                         (call.dh == nullptr || is_aligned_view(call.scale));
  plan.sums_aligned = call.dvector_stride % 4 == 0 && is_aligned_to<16>(call.dshift) &&
                      is_aligned_to<16>(call.dscale) && is_aligned_to<16>(call.dgate) &&
                      is_aligned_to<16>(call.dbranch_sum);
  return plan;
}

}  // namespace
}  // namespace kinora::kernels::cuda
