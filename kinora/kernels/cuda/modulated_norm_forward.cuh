#pragma once

#include "kinora/kernels/cuda/modulated_norm.cuh"

/// The fast kernels of modulated_norm.cu. A row belongs to one warp or four, "its lanes"; a lane
/// has every 32nd (128th) chunk of eight columns.
namespace kinora::kernels::cuda {
namespace {

constexpr int kMaxWarps = 8;  // of a block whose warps take a row each
constexpr int kTileRows = 32;
constexpr int kDirectRows = 4;  // of a block of forward_direct_kernel

struct ForwardPlan {
  VectorRows rows_of_vectors;
  int64_t even_blocks;      // of a vector
  int64_t blocks_per_pair;  // of an even vector and the odd one behind it
  int rows_per_block;
  bool vectors_aligned;
  int tile_pitch;     // 0: no tile
  float mean_factor;  // of a row's sum; 0: rows are not centred
};

inline float mean_factor(const ResidualNormForward& call) {
  return call.centres ? 1.0F / static_cast<float>(call.width) : 0.0F;
}

/// The row's sum in every one of its threads.
template <int kWarpsPerRow>
__device__ __forceinline__ float row_sum(float value, float* scratch) {
  value = warp_sum(value);
  if constexpr (kWarpsPerRow > 1) {
    if (threadIdx.x % 32 == 0) {
      scratch[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kWarpsPerRow; ++warp) {
      value += scratch[warp];
    }
  }
  return value;
}

/// The two planes of a chunk.
__device__ __forceinline__ void read_planes(const float4* planes, int num_chunks, int chunk,
                                            float (&values)[kChunk]) {
  const float4 low = planes[chunk];
  const float4 high = planes[num_chunks + chunk];
  values[0] = low.x;
  values[1] = low.y;
  values[2] = low.z;
  values[3] = low.w;
  values[4] = high.x;
  values[5] = high.y;
  values[6] = high.z;
  values[7] = high.w;
}

__device__ __forceinline__ float sum_of(const float (&v)[kChunk]) {
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// Gate, 1 + scale and shift of a vector into shared memory, by the whole block. All of a thread's
/// loads are under way before the first is waited for: each block begins with this.
/// kSteps: groups of four columns that a thread takes at a time.
template <int kSteps>
__device__ __forceinline__ void fill_planes(const ResidualNormForward& call, bool vectors_aligned,
                                            int64_t vector, int num_chunks, bool wants_gate,
                                            bool wants_norm, float4* planes) {
  const int threads = static_cast<int>(blockDim.x);
  const int num_quads = 2 * num_chunks;
  const auto view_of = [&](int p) -> const VectorView& {
    return p == 0 ? call.gate : (p == 1 ? call.scale : call.shift);
  };
  for (int base = static_cast<int>(threadIdx.x); base < num_quads; base += kSteps * threads) {
    float4 values[3][kSteps];
    float4 tables[3][kSteps];
    const auto load = [&](bool of_tables, float4(&target)[3][kSteps]) {
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const VectorView& view = view_of(p);
        const float* source =
            of_tables ? view.table
                      : (view.data == nullptr ? nullptr : view.data + vector * view.stride);
        const bool is_wanted_here = (p == 0 ? wants_gate : wants_norm) && source != nullptr;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const int quad = base + s * threads;
          target[p][s] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
          if (is_wanted_here && quad < num_quads) {
            const float* const at = source + 4 * quad;
            target[p][s] = vectors_aligned ? *reinterpret_cast<const float4*>(at)
                                           : make_float4(at[0], at[1], at[2], at[3]);
          }
        }
      }
    };
    load(false, values);
    if ((wants_gate && call.gate.table != nullptr) ||
        (wants_norm && (call.scale.table != nullptr || call.shift.table != nullptr))) {
      load(true, tables);
#pragma unroll
      for (int p = 0; p < 3; ++p) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          values[p][s] = add(values[p][s], tables[p][s]);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int quad = base + s * threads;
      if (quad < num_quads) {
        float4* const place = planes + quad % 2 * num_chunks + quad / 2;
        place[0] = values[0][s];
        place[2 * num_chunks] = add(values[1][s], make_float4(1.0F, 1.0F, 1.0F, 1.0F));
        place[4 * num_chunks] = values[2][s];
      }
    }
  }
}

/// As many as 256 threads have of a row, where the registers do.
template <int kWarpsPerRow, int kChunks>
inline constexpr int kPlaneSteps = kWarpsPerRow > 1 || kChunks == 5 ? 2 : 1;

/// The rows of a block of forward_kernel and their vector.
struct BlockRows {
  int64_t vector;
  int64_t first;
  int64_t end;

  __device__ BlockRows(const ResidualNormForward& call, const ForwardPlan& plan) {
    const int64_t pair = blockIdx.x / plan.blocks_per_pair;
    int64_t block = blockIdx.x - pair * plan.blocks_per_pair;
    vector = 2 * pair;
    if (block >= plan.even_blocks) {
      block -= plan.even_blocks;
      ++vector;
    }
    first = plan.rows_of_vectors.begin(vector) + block * plan.rows_per_block;
    end = min(min(plan.rows_of_vectors.begin(vector + 1), call.rows), first + plan.rows_per_block);
  }
};

/// What is left to do of a row, once its lanes have x_out.
/// kFull: so many of a lane's kChunks chunks are in every row.
template <typename T, int kWarpsPerRow, int kChunks, int kFull>
struct RowNorm {
  static constexpr int kLanes = 32 * kWarpsPerRow;
  const ResidualNormForward& call;
  const ForwardPlan& plan;
  uint8_t* tile;
  float* mean_scratch;
  float* variance_scratch;
  int num_chunks;
  int lane;
  bool wants_h8;
  bool wants_h;
  bool wants_norm;
  bool wants_vectors;  // scale and shift
  bool has_plain_h;    // h in the type T, and nothing else of it
  bool h_is_float;
  bool e5m2;
  float inverse_width;
  float h8_scale;
  uint32_t magnitude = 0;

  __device__ __forceinline__ RowNorm(const ResidualNormForward& call_, const ForwardPlan& plan_,
                                     uint8_t* tile_, float* mean_scratch_, float* variance_scratch_)
      : call(call_),
        plan(plan_),
        tile(tile_),
        mean_scratch(mean_scratch_),
        variance_scratch(variance_scratch_) {
    const int width = static_cast<int>(call.width);
    num_chunks = width / kChunk;
    lane = static_cast<int>(threadIdx.x) % kLanes;
    wants_h8 = call.h_fp8.data != nullptr;
    wants_h = call.h != nullptr || wants_h8 || call.h_fp8.amax != nullptr;
    wants_norm = wants_h || call.mean != nullptr || call.rstd != nullptr;
    wants_vectors = wants_h && call.has_norm;
    h_is_float = call.h_type == DType::kF32;
    e5m2 = call.h_fp8.type == DType::kF8E5M2;
    has_plain_h = call.h != nullptr && !wants_h8 && call.h_fp8.amax == nullptr &&
                  (sizeof(T) == 4 || !h_is_float);
    inverse_width = 1.0F / static_cast<float>(width);
    h8_scale = wants_h8 && call.h_fp8.scale != nullptr ? *call.h_fp8.scale : 1.0F;
  }

  /// Whether the lane has an i-th chunk.
  [[nodiscard]] __device__ __forceinline__ bool has(int i) const {
    return i < kFull || lane + i * kLanes < num_chunks;
  }
  /// Where the lane's first chunk of a row begins; the others follow kLanes * kChunk apart.
  [[nodiscard]] __device__ __forceinline__ int64_t base_of(int64_t row) const {
    return row * static_cast<int>(call.width) + lane * kChunk;
  }

  /// The same of h.
  [[nodiscard]] __device__ __forceinline__ int64_t h_base_of(int64_t row) const {
    return call.h_stride > 0 ? row * call.h_stride + lane * kChunk : base_of(row);
  }

  /// Stores the lane's i-th chunk of h in every form that is wanted.
  __device__ __forceinline__ void put_h(int64_t row, int row_of_tile, int i,
                                        const float (&h)[kChunk]) {
    if (call.h != nullptr) {
      const int64_t place = h_base_of(row) + i * kLanes * kChunk;
      if (h_is_float) {
        store_floats<float, kChunk>(call.h, place, kChunk, true, h);
      } else {
        store_floats<T, kChunk>(call.h, place, kChunk, true, h);
      }
    }
    if (call.h_fp8.amax != nullptr) {
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        magnitude = larger_magnitude(magnitude, h[k]);
      }
    }
    if (wants_h8) {
      const uint2 bytes = quantise8(h, h8_scale, e5m2);
      *reinterpret_cast<uint2*>(static_cast<uint8_t*>(call.h_fp8.data) + base_of(row) +
                                i * kLanes * kChunk) = bytes;
      if (plan.tile_pitch > 0) {
        const int offset = tile_offset<kTileRows / kTileSegment>(plan.tile_pitch, row_of_tile,
                                                                 (lane + i * kLanes) * kChunk);
        *reinterpret_cast<uint2*>(tile + offset) = bytes;
      }
    }
  }

  /// x: x_out, unrounded; changed.
  /// read_vectors(i, factor, offset) has 1 + scale and shift of the lane's i-th chunk.
  template <typename ReadVectors>
  __device__ __forceinline__ void finish(int64_t row, int row_of_tile, float (&x)[kChunks][kChunk],
                                         const ReadVectors& read_vectors) {
    const auto modulate = [&](int i, float rstd, float(&h)[kChunk]) {
      float factor[kChunk];
      float offset[kChunk];
      read_vectors(i, factor, offset);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        h[k] = x[i][k] * rstd * factor[k] + offset[k];
      }
    };
    const int64_t base = base_of(row);
    if (call.x_out != nullptr) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (has(i)) {
          store_floats<T, kChunk>(call.x_out, base + i * kLanes * kChunk, kChunk, true, x[i]);
        }
      }
    }
    if (!wants_norm) {
      return;
    }

    if (!call.has_norm) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (has(i)) {
          unpack<T, kChunk>(pack<T, kChunk>(x[i]), x[i]);
          put_h(row, row_of_tile, i, x[i]);
        }
      }
      return;
    }

    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (has(i)) {
        sum += sum_of(x[i]);
      }
    }
    const float mean = row_sum<kWarpsPerRow>(sum, mean_scratch) * plan.mean_factor;
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (has(i)) {
        float square[kChunk];
#pragma unroll
        for (int k = 0; k < kChunk; ++k) {
          x[i][k] -= mean;
          square[k] = x[i][k] * x[i][k];
        }
        squares += sum_of(square);
      }
    }
    const float variance = row_sum<kWarpsPerRow>(squares, variance_scratch) * inverse_width;
    const float rstd = rsqrtf(variance + call.epsilon);
    if (lane == 0) {
      if (call.mean != nullptr) {
        call.mean[row] = mean;
      }
      if (call.rstd != nullptr) {
        call.rstd[row] = rstd;
      }
    }
    if (!wants_h) {
      return;
    }
    const int64_t h_base = h_base_of(row);
    if (has_plain_h) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (has(i)) {
          float h[kChunk];
          modulate(i, rstd, h);
          store_floats<T, kChunk>(call.h, h_base + i * kLanes * kChunk, kChunk, true, h);
        }
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (has(i)) {
        float h[kChunk];
        modulate(i, rstd, h);
        put_h(row, row_of_tile, i, h);
      }
    }
  }

  /// After all rows.
  __device__ __forceinline__ void record_amax() const {
    if (call.h_fp8.amax != nullptr) {
      record_warp_amax(call.h_fp8.amax, magnitude);
    }
  }

  /// After all rows, the whole block at once: the tile, if any, of the rows from `first` on.
  __device__ __forceinline__ void store_tile(int64_t first, int64_t end) const {
    if (plan.tile_pitch > 0) {
      __syncthreads();
      store_transposed<kTileRows / kTileSegment>(
          tile, plan.tile_pitch, static_cast<int>(end - first), static_cast<int>(call.width),
          static_cast<uint8_t*>(call.h_fp8.transposed) + first, transposed_pitch(call.rows));
    }
  }
};

/// Blocks of a multiprocessor that the registers must do for. Narrow rows need more warps to have
/// enough loads in flight.
constexpr int min_blocks(int warps_per_row, size_t lane_bytes) {
  return warps_per_row > 1 ? 1 : (lane_bytes <= 32 ? 4 : 2);
}

/// The next row is on its way into registers while a row is reduced.
template <typename T, int kWarpsPerRow, int kChunks, int kFull>
__global__ void __launch_bounds__(kWarpsPerRow == 1 ? kMaxWarps * 32 : kWarpsPerRow * 32,
                                  min_blocks(kWarpsPerRow, kChunks* kChunk * sizeof(T)))
    forward_kernel(const ResidualNormForward call, const ForwardPlan plan) {
  constexpr int kLanes = 32 * kWarpsPerRow;
  extern __shared__ float4 shared[];
  // Two buffers: between the last read of one and its next write lies the other's barrier.
  __shared__ float mean_scratch[kWarpsPerRow], variance_scratch[kWarpsPerRow];
  const int num_chunks = static_cast<int>(call.width) / kChunk;
  RowNorm<T, kWarpsPerRow, kChunks, kFull> norm(call, plan,
                                                reinterpret_cast<uint8_t*>(shared + 6 * num_chunks),
                                                mean_scratch, variance_scratch);
  const bool has_branch = call.branch != nullptr;
  const BlockRows rows(call, plan);
  const int stride = static_cast<int>(blockDim.x) / kLanes;
  int64_t row = rows.first + threadIdx.x / kLanes;

  Packed<T, kChunk> x_next[kChunks];
  Packed<T, kChunk> branch_next[kChunks];
  const auto prefetch = [&](int64_t next) {
    if (next < rows.end) {
      const int64_t base = norm.base_of(next);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (norm.has(i)) {
          x_next[i] = load_packed<T, kChunk>(call.x, base + i * kLanes * kChunk);
        }
      }
      if (has_branch) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          if (norm.has(i)) {
            branch_next[i] = load_packed<T, kChunk>(call.branch, base + i * kLanes * kChunk);
          }
        }
      }
    }
  };
  const auto read_vectors = [&](int i, float(&factor)[kChunk], float(&offset)[kChunk]) {
    const int chunk = norm.lane + i * kLanes;
    read_planes(shared + 2 * num_chunks, num_chunks, chunk, factor);
    read_planes(shared + 4 * num_chunks, num_chunks, chunk, offset);
  };
  prefetch(row);
  fill_planes<kPlaneSteps<kWarpsPerRow, kChunks>>(
      call, plan.vectors_aligned, rows.vector, num_chunks, has_branch, norm.wants_vectors, shared);
  __syncthreads();

  for (; row < rows.end; row += stride) {
    float x[kChunks][kChunk];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (norm.has(i)) {
        unpack<T, kChunk>(x_next[i], x[i]);
      }
    }
    if (has_branch) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (norm.has(i)) {
          float branch[kChunk];
          float factor[kChunk];
          unpack<T, kChunk>(branch_next[i], branch);
          read_planes(shared, num_chunks, norm.lane + i * kLanes, factor);
#pragma unroll
          for (int k = 0; k < kChunk; ++k) {
            x[i][k] += factor[k] * branch[k];
          }
        }
      }
    }
    prefetch(row + stride);
    norm.finish(row, static_cast<int>(row - rows.first), x, read_vectors);
  }
  norm.record_amax();
  norm.store_tile(rows.first, rows.end);
}

/// For few rows, where one row's latency is the whole time: a row a warp, its vectors straight into
/// registers, the loads under way before the first is waited for. The same bits as forward_kernel.
template <typename T, int kChunks, int kFull>
__global__ void __launch_bounds__(kDirectRows * 32, kChunks <= 5 ? 3 : 2)
    forward_direct_kernel(const ResidualNormForward call, uint32_t even_rows, uint32_t odd_rows,
                          float mean_factor) {
  const uint32_t row = blockIdx.x * kDirectRows + threadIdx.x / 32;
  if (row >= call.rows) {
    return;
  }
  const ForwardPlan plan = {.mean_factor = mean_factor};  // no tile
  RowNorm<T, 1, kChunks, kFull> norm(call, plan, nullptr, nullptr, nullptr);
  const bool has_branch = call.branch != nullptr;
  const int64_t base = norm.base_of(row);
  const auto load_row = [&](const void* array, Packed<T, kChunk>(&values)[kChunks]) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (norm.has(i)) {
        values[i] = load_packed<T, kChunk>(array, base + i * 32 * kChunk);
      }
    }
  };
  const auto load_vector_chunk = [&](const float* vector, int i, float(&values)[kChunk]) {
    unpack<float, kChunk>(load_packed<float, kChunk>(vector, (norm.lane + i * 32) * kChunk),
                          values);
  };

  Packed<T, kChunk> x_packed[kChunks];
  Packed<T, kChunk> branch_packed[kChunks];
  float gate[kChunks][kChunk] = {};
  float scale[kChunks][kChunk] = {};
  float shift[kChunks][kChunk] = {};
  load_row(call.x, x_packed);
  if (has_branch) {
    load_row(call.branch, branch_packed);
  }
  const uint32_t pair = row / (even_rows + odd_rows);
  const uint32_t vector = 2 * pair + (row - pair * (even_rows + odd_rows) >= even_rows ? 1 : 0);
  const auto load_data = [&](const VectorView& view, bool is_wanted_here,
                             float(&values)[kChunks][kChunk]) {
    if (is_wanted_here && view.data != nullptr) {
      const float* const data = view.data + vector * view.stride;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (norm.has(i)) {
          load_vector_chunk(data, i, values[i]);
        }
      }
    }
  };
  const auto add_table = [&](const VectorView& view, bool is_wanted_here,
                             float(&values)[kChunks][kChunk]) {
    if (is_wanted_here && view.table != nullptr) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (norm.has(i)) {
          float table[kChunk];
          load_vector_chunk(view.table, i, table);
#pragma unroll
          for (int k = 0; k < kChunk; ++k) {
            values[i][k] += table[k];
          }
        }
      }
    }
  };
  load_data(call.gate, has_branch, gate);
  add_table(call.gate, has_branch, gate);
  load_data(call.scale, norm.wants_vectors, scale);
  add_table(call.scale, norm.wants_vectors, scale);

  float x[kChunks][kChunk];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if (norm.has(i)) {
      unpack<T, kChunk>(x_packed[i], x[i]);
      if (has_branch) {
        float branch[kChunk];
        unpack<T, kChunk>(branch_packed[i], branch);
#pragma unroll
        for (int k = 0; k < kChunk; ++k) {
          x[i][k] += gate[i][k] * branch[k];
        }
      }
    }
  }
  // In the registers that are free by now; the row's two sums hide it.
  load_data(call.shift, norm.wants_vectors, shift);
  add_table(call.shift, norm.wants_vectors, shift);
  norm.finish(row, 0, x, [&](int i, float(&factor)[kChunk], float(&offset)[kChunk]) {
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      factor[k] = scale[i][k] + 1.0F;
      offset[k] = shift[i][k];
    }
  });
  norm.record_amax();
}

}  // namespace
}  // namespace kinora::kernels::cuda
