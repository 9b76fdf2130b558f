#pragma once

// Attention backward, for one head_dim, from Q, K, V, O, dO and lse:
//   P = exp(scale Q K^T - lse), delta = rowsum(dO O), dS = P (dO V^T - delta)
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
// Five products, no atomic additions, the same bits each time.
//
// Layout: a block has 8 warps (fewer for short keys and small GPUs) and works on one item at a
// time: a head, or a part of a head's queries where there are fewer heads than multiprocessors. A
// warp owns 32 keys (16 for wide heads): their dK and dV stay in its registers, their K and V are
// in shared memory, all in the transposed form S^T = K Q^T, where P^T and dS^T go from accumulators
// to operands in registers. The block walks over the queries in steps of 32, whose Q and dO come
// through a ring of two in shared memory; the threads that copied dO also compute delta. dS^T of up
// to 4 steps is kept in shared memory; then dQ = dS K of these 128 queries is computed by all warps
// (32 queries x half of head_dim each), so it needs no partial sums. Keys that do not fit at once
// are a loop around all this; dQ's sums so far then wait in a block's own workspace (fp32, hot in
// L2; a thread reads what it wrote itself). Parts of a head leave dK and dV in fp32, added up by a
// second kernel. Blocks are persistent: Q, dO and a share of the next K and V are fetched during
// each step.
//
// Speed at N 256, head_dim 72, a head on an SM of an H200: 23.6 M multiply-adds are 18.3 k cycles
// of mma.sync at the 1,290 a cycle that it reaches; shared memory (ldmatrix: 56 of 512 bytes a warp
// and step, dQ 550 KB, dS) 19 k; exp2 4.1 k; memory 295 KB = 16 k. dK and dV alone are 147 KB of
// the 256 KB of registers, so only one head fits on an SM; a phase of 128 queries instead of one a
// step halves the traffic of dQ. 31 heads an SM at 30 k cycles are 0.55 ms at 1.7 GHz.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_plan.h"
#include "kinora/kernels/cuda/attention_tile.cuh"

namespace kinora::kernels::cuda::attention {

inline constexpr int kStepQueries = 32;
inline constexpr int kStepTiles = kStepQueries / 8;
inline constexpr int kMaxSlots = 4;
inline constexpr int kMaxBackwardWarps = 8;
inline constexpr int kStatsBytes = 2 * kStepQueries * static_cast<int>(sizeof(float));

template <int kHeadDim>
struct BackwardTraits {
  static constexpr int kChunks = Row<kHeadDim>::kChunks;
  static constexpr int kMTiles = kHeadDim <= 80 ? 2 : 1;
  static constexpr int kWarpKeys = 16 * kMTiles;
  /// head_dim is parted in dQ's products so that a warp's part has at most 6 tiles.
  static constexpr int kParts = kChunks <= 12 ? 2 : 4;
  static constexpr int kPartTiles = ceil_div(kChunks, kParts);
  static constexpr int kRowBytes = Row<kHeadDim>::kPitch;
  static constexpr int kRingBytes = 2 * kStepQueries * kRowBytes;  // Q and dO of a step
};

/// Addresses in shared memory: [num_kv_buffers][K, V], [2][Q, dO], dS^T, [2][lse, delta].
struct BackwardMemory {
  uint32_t kv;
  uint32_t ring;
  uint32_t ds;
  uint32_t stats;
  int kv_bytes;  ///< K or V of a block of keys
  int ds_pitch;  ///< bytes of a key's row
};

/// A part of a head's queries, and its keys.
struct Item {
  int index;
  int b;
  int h;
  int first_step;
  int num_steps;
  int key_blocks;
  KeyRange keys;
};

__device__ __forceinline__ Item item_of(const BackwardPlan& plan, int index, int block_keys) {
  const AttentionShape& shape = plan.call.shape;
  Item item;
  item.index = index;
  const int head = index / plan.num_splits;
  item.first_step = (index - head * plan.num_splits) * plan.split_steps;
  const int steps = ceil_div(static_cast<int>(shape.query_length), kStepQueries);
  item.num_steps = min(plan.split_steps, steps - item.first_step);
  item.b = head / static_cast<int>(shape.heads);
  item.h = head - item.b * static_cast<int>(shape.heads);
  item.keys = key_range(shape, item.b);
  item.key_blocks = max(1, ceil_div(item.keys.count, block_keys));
  return item;
}

/// 32 queries of a head.
struct Step {
  int b;
  int h;
  int first_row;
};

__device__ __forceinline__ Step step_of(const Item& item, int step) {
  return {item.b, item.h, (item.first_step + step) * kStepQueries};
}

/// Starts copying a share of a block of keys, step `part` of `num_parts`.
template <int kHeadDim>
__device__ __forceinline__ void copy_keys(const BackwardPlan& plan, const BackwardMemory& memory,
                                          int buffer, const Item& item, int key_block,
                                          int block_keys, int part, int num_parts) {
  const int total = block_keys * Row<kHeadDim>::kChunks;
  const int share = ceil_div(total, num_parts);
  const int first = min(part * share, total);
  const int last = min(first + share, total);
  const int first_key = key_block * block_keys;
  const int num_keys = item.keys.count - first_key;
  const uint32_t target = memory.kv + buffer * 2 * memory.kv_bytes;
  const int64_t row = item.keys.begin + first_key;
  copy_chunks<kHeadDim>(target, row_of(plan.call.k, item.keys.b, row, item.h),
                        plan.call.k.row_stride, num_keys, first, last);
  copy_chunks<kHeadDim>(target + memory.kv_bytes, row_of(plan.call.v, item.keys.b, row, item.h),
                        plan.call.v.row_stride, num_keys, first, last);
}

/// Eight lanes share a row of a step: lane i has chunks i, i + 8, ... The rows of a warp are
/// 4 warp + lane / 8 and on, in steps of 4 num_warps.
template <int kHeadDim>
__device__ __forceinline__ void copy_queries(const BackwardPlan& plan, uint32_t ring, Step step,
                                             int warp, int lane) {
  using R = Row<kHeadDim>;
  for (int r = 4 * warp + (lane >> 3); r < kStepQueries; r += 4 * plan.num_warps) {
    const int row = step.first_row + r;
    const bool valid = row < static_cast<int>(plan.call.shape.query_length);
    const int safe_row = valid ? row : 0;
    const uint16_t* q = row_of(plan.call.q, step.b, safe_row, step.h);
    const uint16_t* dout = row_of(plan.call.dout, step.b, safe_row, step.h);
    const uint16_t* out = row_of(plan.call.out, step.b, safe_row, step.h);
    const uint32_t target = ring + r * R::kPitch;
#pragma unroll
    for (int c = 0; c < ceil_div(R::kChunks, 8); ++c) {
      const int chunk = c * 8 + (lane & 7);
      if (chunk < R::kChunks) {
        copy_async(target + chunk * 16, q + chunk * 8, valid);
        copy_async(target + kStepQueries * R::kPitch + chunk * 16, dout + chunk * 8, valid);
        prefetch_l2(out + chunk * 8);
      }
    }
  }
}

/// A lane's chunks of one row of O, and the row's lse in powers of two.
template <int kHeadDim>
struct OutputRow {
  uint4 chunk[ceil_div(kHeadDim / 8, 8)];
  float lse;
};

template <int kHeadDim>
__device__ __forceinline__ OutputRow<kHeadDim> load_output(const BackwardPlan& plan, Step step,
                                                           int r, int lane) {
  const AttentionShape& shape = plan.call.shape;
  OutputRow<kHeadDim> result;
  const int row = step.first_row + r;
  const bool valid = row < static_cast<int>(shape.query_length);
  const uint16_t* out = row_of(plan.call.out, step.b, valid ? row : 0, step.h);
#pragma unroll
  for (int c = 0; c < ceil_div(kHeadDim / 8, 8); ++c) {
    const int chunk = c * 8 + (lane & 7);
    result.chunk[c] = make_uint4(0, 0, 0, 0);
    if (valid && chunk < kHeadDim / 8) {
      result.chunk[c] = *reinterpret_cast<const uint4*>(out + chunk * 8);
    }
  }
  // Rows past the end: P = exp2(-inf) = 0.
  result.lse = INFINITY;
  if (valid) {
    result.lse =
        kLog2E *
        plan.call
            .lse[(static_cast<int64_t>(step.b) * shape.heads + step.h) * shape.query_length + row];
  }
  return result;
}

template <typename T>
__device__ __forceinline__ float dot(uint32_t a, uint32_t b) {
  const float2 x = unpack<T>(a);
  const float2 y = unpack<T>(b);
  return x.x * y.x + x.y * y.y;
}

/// Writes lse and delta of a step. The copies of this thread must have arrived.
/// @param first  the first of this lane's rows of O, loaded ahead
template <typename T, int kHeadDim>
__device__ __forceinline__ void store_stats(const BackwardPlan& plan, uint32_t ring, uint32_t stats,
                                            Step step, const OutputRow<kHeadDim>& first, int warp,
                                            int lane) {
  using R = Row<kHeadDim>;
  OutputRow<kHeadDim> output = first;
  int r = 4 * warp + (lane >> 3);
  while (true) {
    const uint32_t dout = ring + (kStepQueries + r) * R::kPitch;
    float delta = 0.0F;
#pragma unroll
    for (int c = 0; c < ceil_div(R::kChunks, 8); ++c) {
      const int chunk = c * 8 + (lane & 7);
      if (chunk < R::kChunks) {
        const uint4 x = load_shared_uint4(dout + chunk * 16);
        delta += dot<T>(x.x, output.chunk[c].x) + dot<T>(x.y, output.chunk[c].y) +
                 dot<T>(x.z, output.chunk[c].z) + dot<T>(x.w, output.chunk[c].w);
      }
    }
    delta += shuffle_xor(delta, 1);
    delta += shuffle_xor(delta, 2);
    delta += shuffle_xor(delta, 4);
    if ((lane & 7) == 0) {
      store_shared(stats + r * 4, output.lse);
      store_shared(stats + kStepQueries * 4 + r * 4, delta);
    }
    r += 4 * plan.num_warps;
    if (r >= kStepQueries) {
      return;
    }
    output = load_output<kHeadDim>(plan, step, r, lane);
  }
}

/// A warp's sums over the queries.
template <int kHeadDim>
struct KeyGradients {
  float dk[BackwardTraits<kHeadDim>::kMTiles][kHeadDim / 8][4];
  float dv[BackwardTraits<kHeadDim>::kMTiles][kHeadDim / 8][4];
};

/// A key's row of dS^T has chunk c (queries 8 c ... 8 c + 7 of the phase) at c ^ (key mod 8): then
/// 8 keys at one chunk lie in different banks, and ds_pitch is a multiple of 128.
__device__ __forceinline__ uint32_t ds_chunk(int chunk, int key) {
  return static_cast<uint32_t>((chunk ^ (key & 7)) * 16);
}

/// P^T of the warp's keys and the step's queries, as operands: [m][tile][half] has (key
/// 16 m + 8 half + g, queries 8 tile + 2 t..).
template <typename T, int kHeadDim>
__device__ __forceinline__ void probabilities(
    uint32_t (&p)[BackwardTraits<kHeadDim>::kMTiles][kStepTiles][2], uint32_t k, uint32_t q,
    uint32_t stats, float scale_log2, int num_keys, int lane) {
  constexpr int kMTiles = BackwardTraits<kHeadDim>::kMTiles;
  float s[kMTiles][kStepTiles][4] = {};
  multiply_rows<T, kHeadDim>(s, k, q, lane);
#pragma unroll
  for (int n = 0; n < kStepTiles; ++n) {
    const float2 lse = load_shared_float2(stats + (n * 8 + 2 * (lane & 3)) * 4);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        p[m][n][half] = pack<T>(exp2_approx(s[m][n][2 * half] * scale_log2 - lse.x),
                                exp2_approx(s[m][n][2 * half + 1] * scale_log2 - lse.y));
      }
    }
  }
  if (num_keys < 16 * kMTiles) {  // keys past the end
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (m * 16 + half * 8 + (lane >> 2) >= num_keys) {
#pragma unroll
          for (int n = 0; n < kStepTiles; ++n) {
            p[m][n][half] = 0;
          }
        }
      }
    }
  }
}

/// p = P^T becomes dS^T / scale = P^T (V dO^T - delta).
template <typename T, int kHeadDim>
__device__ __forceinline__ void score_gradients(
    uint32_t (&p)[BackwardTraits<kHeadDim>::kMTiles][kStepTiles][2], uint32_t v, uint32_t dout,
    uint32_t stats, int lane) {
  constexpr int kMTiles = BackwardTraits<kHeadDim>::kMTiles;
  float dp[kMTiles][kStepTiles][4] = {};
  multiply_rows<T, kHeadDim>(dp, v, dout, lane);
#pragma unroll
  for (int n = 0; n < kStepTiles; ++n) {
    const float2 delta =
        load_shared_float2(stats + kStepQueries * 4 + (n * 8 + 2 * (lane & 3)) * 4);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 value = unpack<T>(p[m][n][half]);
        p[m][n][half] = pack<T>(value.x * (dp[m][n][2 * half] - delta.x),
                                value.y * (dp[m][n][2 * half + 1] - delta.y));
      }
    }
  }
}

/// dQ of the queries of the phase's slots: 32 queries x a part of head_dim a warp at a time.
/// @param first_local  the phase's first step, counted from the item's first
/// @param partial      sums over the blocks of keys so far, [step][tile][m][lane]; null if one has
///                     all keys
template <typename T, int kHeadDim>
__device__ __forceinline__ void query_gradients(const BackwardPlan& plan,
                                                const BackwardMemory& memory, uint32_t k,
                                                const Item& item, int first_local, int num_slots,
                                                int num_keys, float4* partial, bool first_keys,
                                                bool last_keys, int warp, int lane) {
  using R = Row<kHeadDim>;
  using Traits = BackwardTraits<kHeadDim>;
  constexpr int kPartTiles = Traits::kPartTiles;
  const int g = lane >> 2;
  const int t = lane & 3;
  for (int unit = warp; unit < num_slots * Traits::kParts; unit += plan.num_warps) {
    const int part = unit / num_slots;
    const int slot = unit - part * num_slots;
    const int first_tile = part * kPartTiles;
    // The last part may have a tile less, an odd one.
    static_assert(kPartTiles * Traits::kParts - R::kChunks <= kPartTiles % 2);
    const bool has_last = first_tile + kPartTiles <= R::kChunks;
    const int local = first_local + slot;
    const int64_t first_sum = (static_cast<int64_t>(local) * R::kChunks + first_tile) * 64 + lane;
    float acc[2][kPartTiles][4] = {};
    if (!first_keys) {
#pragma unroll
      for (int n = 0; n < kPartTiles; ++n) {
        if (n + 1 < kPartTiles || has_last) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const float4 sum = partial[first_sum + (n * 2 + m) * 32];
            acc[m][n][0] = sum.x;
            acc[m][n][1] = sum.y;
            acc[m][n][2] = sum.z;
            acc[m][n][3] = sum.w;
          }
        }
      }
    }
    // A = dS, from dS^T transposed: matrices (keys 0-7, queries 0-7), (0-7, 8-15), (8-15, 0-7),
    // (8-15, 8-15) are a0 ... a3; the key's row mod 8 is lane & 7.
    const uint32_t a_row = memory.ds + ((lane & 7) + ((lane >> 4) << 3)) * memory.ds_pitch;
    const uint32_t a_first = a_row + ds_chunk(slot * 4 + ((lane >> 3) & 1), lane);
    const uint32_t a_second = a_row + ds_chunk(slot * 4 + 2 + ((lane >> 3) & 1), lane);
    // B = K transposed: b0, b1 of tile n, then of n + 1.
    const uint32_t b_lane = k + (lane & 15) * R::kPitch + first_tile * 16;
#pragma unroll 2
    for (int key = 0; key < num_keys; key += 16) {
      uint32_t a[2][4];
      load_transposed(a[0], a_first + key * memory.ds_pitch);
      load_transposed(a[1], a_second + key * memory.ds_pitch);
      const uint32_t b_row = b_lane + key * R::kPitch;
#pragma unroll
      for (int n = 0; n + 2 <= kPartTiles; n += 2) {
        uint32_t b[4];
        load_transposed(b, b_row + n * 16 + (lane >> 4) * 16);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add16<T>(acc[m][n], a[m], b[0], b[1]);
          multiply_add16<T>(acc[m][n + 1], a[m], b[2], b[3]);
        }
      }
      if constexpr (kPartTiles % 2 == 1) {
        if (has_last) {
          uint32_t b[2];
          load_transposed(b, b_row + (kPartTiles - 1) * 16);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            multiply_add16<T>(acc[m][kPartTiles - 1], a[m], b[0], b[1]);
          }
        }
      }
    }
    if (!last_keys) {
#pragma unroll
      for (int n = 0; n < kPartTiles; ++n) {
        if (n + 1 < kPartTiles || has_last) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            partial[first_sum + (n * 2 + m) * 32] =
                make_float4(acc[m][n][0], acc[m][n][1], acc[m][n][2], acc[m][n][3]);
          }
        }
      }
      continue;
    }
    const float scale = plan.call.shape.scale;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (item.first_step + local) * kStepQueries + m * 16 + half * 8 + g;
        const bool valid = row < static_cast<int>(plan.call.shape.query_length);
        uint16_t* target = row_of(plan.call.dq, item.b, valid ? row : 0, item.h) + first_tile * 8;
        uint32_t words[kPartTiles];
#pragma unroll
        for (int n = 0; n < kPartTiles; ++n) {
          words[n] = pack<T>(acc[m][n][2 * half] * scale, acc[m][n][2 * half + 1] * scale);
        }
        // The last tile of an odd part is written on its own.
        constexpr int kWhole = kPartTiles / 2 * 2;
        uint32_t whole[kWhole];
#pragma unroll
        for (int n = 0; n < kWhole; ++n) {
          whole[n] = words[n];
        }
        store_row(target, valid, t, whole);
        if (kWhole < kPartTiles && has_last && valid) {
          *reinterpret_cast<uint32_t*>(target + kWhole * 8 + 2 * t) = words[kPartTiles - 1];
        }
      }
    }
  }
}

/// A warp's dK and dV to memory, or to the workspace of the item's part.
template <typename T, int kHeadDim>
__device__ __forceinline__ void store_key_gradients(const BackwardPlan& plan, const Item& item,
                                                    const KeyGradients<kHeadDim>& gradients,
                                                    int first_key, int lane) {
  using R = Row<kHeadDim>;
  constexpr int kMTiles = BackwardTraits<kHeadDim>::kMTiles;
  const AttentionShape& shape = plan.call.shape;
  const float scale = shape.scale;
  const int g = lane >> 2;
  const int t = lane & 3;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first_key + m * 16 + half * 8 + g;
      const bool valid = key < item.keys.count;
      if (plan.num_splits > 1) {
        const int head = item.index / plan.num_splits;
        const int split = item.index - head * plan.num_splits;
        float* sums = plan.dkv_partial + split * plan.dkv_floats +
                      (static_cast<int64_t>(head) * shape.key_length + key) * (2 * kHeadDim);
#pragma unroll
        for (int c = 0; c < R::kChunks; ++c) {
          if (valid) {
            *reinterpret_cast<float2*>(sums + c * 8 + 2 * t) = make_float2(
                gradients.dk[m][c][2 * half] * scale, gradients.dk[m][c][2 * half + 1] * scale);
            *reinterpret_cast<float2*>(sums + kHeadDim + c * 8 + 2 * t) =
                make_float2(gradients.dv[m][c][2 * half], gradients.dv[m][c][2 * half + 1]);
          }
        }
      } else {
        const int64_t row = item.keys.begin + (valid ? key : 0);
        uint32_t words[R::kChunks];
#pragma unroll
        for (int c = 0; c < R::kChunks; ++c) {
          words[c] = pack<T>(gradients.dk[m][c][2 * half] * scale,
                             gradients.dk[m][c][2 * half + 1] * scale);
        }
        store_row(row_of(plan.call.dk, item.keys.b, row, item.h), valid, t, words);
#pragma unroll
        for (int c = 0; c < R::kChunks; ++c) {
          words[c] = pack<T>(gradients.dv[m][c][2 * half], gradients.dv[m][c][2 * half + 1]);
        }
        store_row(row_of(plan.call.dv, item.keys.b, row, item.h), valid, t, words);
      }
    }
  }
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(32 * kMaxBackwardWarps, 1)
    backward_kernel(const __grid_constant__ BackwardPlan plan) {
  using R = Row<kHeadDim>;
  using Traits = BackwardTraits<kHeadDim>;
  constexpr int kMTiles = Traits::kMTiles;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int block_keys = plan.num_warps * Traits::kWarpKeys;
  const int step_row = 4 * warp + (lane >> 3);  // the first row that this thread copies

  BackwardMemory memory;
  memory.kv_bytes = block_keys * R::kPitch;
  memory.ds_pitch = plan.num_slots * kStepQueries * 2;
  memory.kv = shared_base();
  memory.ring = memory.kv + plan.num_kv_buffers * 2 * memory.kv_bytes;
  memory.ds = memory.ring + 2 * Traits::kRingBytes;
  memory.stats = memory.ds + block_keys * memory.ds_pitch;

  float4* partial = nullptr;
  if (plan.dq_floats != 0) {
    partial = reinterpret_cast<float4*>(plan.dq_partial + blockIdx.x * plan.dq_floats);
  }

  Item item = item_of(plan, static_cast<int>(blockIdx.x), block_keys);
  int key_block = 0;
  int kv_buffer = 0;
  int ring_slot = 0;
  copy_keys<kHeadDim>(plan, memory, kv_buffer, item, key_block, block_keys, 0, 1);
  copy_queries<kHeadDim>(plan, memory.ring, step_of(item, 0), warp, lane);
  commit_copies();
  {
    const OutputRow<kHeadDim> output =
        load_output<kHeadDim>(plan, step_of(item, 0), step_row, lane);
    wait_copies<0>();
    store_stats<T, kHeadDim>(plan, memory.ring, memory.stats, step_of(item, 0), output, warp, lane);
  }
  __syncthreads();

  while (true) {
    // What comes after this block of keys.
    const bool last_keys = key_block + 1 == item.key_blocks;
    const bool first_keys = key_block == 0;
    Item next = item;
    int next_key_block = key_block + 1;
    bool has_next = true;
    if (last_keys) {
      has_next = item.index + plan.num_blocks < plan.num_items;
      next_key_block = 0;
      if (has_next) {
        next = item_of(plan, item.index + plan.num_blocks, block_keys);
      }
    }
    const int first_key = key_block * block_keys + warp * Traits::kWarpKeys;  // of the warp
    const int warp_keys = item.keys.count - first_key;
    const int num_keys = min(block_keys, item.keys.count - key_block * block_keys);
    const uint32_t k = memory.kv + kv_buffer * 2 * memory.kv_bytes;
    const uint32_t warp_k = k + warp * Traits::kWarpKeys * R::kPitch;

    KeyGradients<kHeadDim> gradients = {};
    int slot = 0;
    for (int step = 0; step < item.num_steps; ++step) {
      const bool last_step = step + 1 == item.num_steps;
      const bool fetch = !last_step || has_next;
      const uint32_t q = memory.ring + ring_slot * Traits::kRingBytes;
      const uint32_t dout = q + kStepQueries * R::kPitch;
      const uint32_t stats = memory.stats + ring_slot * kStatsBytes;
      ring_slot ^= 1;
      const uint32_t next_q = memory.ring + ring_slot * Traits::kRingBytes;
      // The ring's other slot was last read before the barrier that ended the step before.
      const Step next_step = last_step ? step_of(next, 0) : step_of(item, step + 1);
      if (fetch) {
        copy_queries<kHeadDim>(plan, next_q, next_step, warp, lane);
      }
      if (has_next && plan.num_kv_buffers == 2) {
        copy_keys<kHeadDim>(plan, memory, kv_buffer ^ 1, next, next_key_block, block_keys, step,
                            item.num_steps);
      }
      commit_copies();

      uint32_t p[kMTiles][kStepTiles][2];
      probabilities<T, kHeadDim>(p, warp_k, q, stats, plan.scale_log2, warp_keys, lane);
      multiply_packed<T, kHeadDim, kMTiles, kStepTiles>(gradients.dv, p, dout, lane);
      score_gradients<T, kHeadDim>(p, warp_k + memory.kv_bytes, dout, stats, lane);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = warp * Traits::kWarpKeys + m * 16 + half * 8 + (lane >> 2);
          const uint32_t row = memory.ds + key * memory.ds_pitch + (lane & 3) * 4;
#pragma unroll
          for (int n = 0; n < kStepTiles; ++n) {
            store_shared(row + ds_chunk(slot * kStepTiles + n, key), p[m][n][half]);
          }
        }
      }
      // O and lse of the next step come while dK is computed.
      OutputRow<kHeadDim> output = {};
      if (fetch) {
        output = load_output<kHeadDim>(plan, next_step, step_row, lane);
      }
      multiply_packed<T, kHeadDim, kMTiles, kStepTiles>(gradients.dk, p, q, lane);

      wait_copies<0>();
      if (fetch) {
        store_stats<T, kHeadDim>(plan, next_q, memory.stats + ring_slot * kStatsBytes, next_step,
                                 output, warp, lane);
      }
      __syncthreads();  // dS is whole, the next step's data are there, this step's ring is free

      ++slot;
      if (slot == plan.num_slots || last_step) {
        query_gradients<T, kHeadDim>(plan, memory, k, item, step + 1 - slot, slot, num_keys,
                                     partial, first_keys, last_keys, warp, lane);
        slot = 0;
        if (last_step) {
          store_key_gradients<T, kHeadDim>(plan, item, gradients, first_key, lane);
        }
        __syncthreads();  // dS, and K and V after the last step, may be overwritten
      }
    }

    if (!has_next) {
      return;
    }
    if (plan.num_kv_buffers == 2) {
      kv_buffer ^= 1;
    } else {
      copy_keys<kHeadDim>(plan, memory, 0, next, next_key_block, block_keys, 0, 1);
      commit_copies();
      wait_copies<0>();
      __syncthreads();
    }
    item = next;
    key_block = next_key_block;
  }
}

template <int kHeadDim>
int backward_shared_bytes(int num_warps, int num_kv_buffers, int num_slots) {
  using Traits = BackwardTraits<kHeadDim>;
  const int keys = num_warps * Traits::kWarpKeys;
  return num_kv_buffers * 2 * keys * Traits::kRowBytes + 2 * Traits::kRingBytes +
         keys * num_slots * kStepQueries * 2 + 2 * kStatsBytes;
}

/// Most bytes of workspace for dK and dV of the parts of heads.
inline constexpr int64_t kMaxPartialBytes = int64_t{1} << 30;

template <int kHeadDim>
cudaError_t plan_backward(const AttentionShape& shape, const Gpu& gpu, BackwardPlan* plan) {
  using Traits = BackwardTraits<kHeadDim>;
  plan->call.shape = shape;
  plan->scale_log2 = shape.scale * kLog2E;
  const auto queries = static_cast<int>(shape.query_length);
  const auto keys = static_cast<int>(shape.key_length);
  const int steps = ceil_div(queries, kStepQueries);

  // As many warps as the keys need; fewer where shared memory is small.
  plan->num_slots = steps <= 2 ? 2 : kMaxSlots;
  plan->num_warps = 1;
  while (plan->num_warps < kMaxBackwardWarps && plan->num_warps * Traits::kWarpKeys < keys) {
    plan->num_warps *= 2;
  }
  while (plan->num_warps > 1 &&
         backward_shared_bytes<kHeadDim>(plan->num_warps, 1, plan->num_slots) > gpu.shared_bytes) {
    plan->num_warps /= 2;
  }
  const void* kernel = shape.type == DType::kBF16
                           ? reinterpret_cast<const void*>(backward_kernel<Bf16, kHeadDim>)
                           : reinterpret_cast<const void*>(backward_kernel<F16, kHeadDim>);
  // Keys are fetched ahead where that costs no block of an SM: a second block hides more.
  int blocks = 0;
  for (const int buffers : {1, 2}) {
    const int bytes = backward_shared_bytes<kHeadDim>(plan->num_warps, buffers, plan->num_slots);
    if (buffers == 2 && bytes > gpu.shared_bytes) {
      break;
    }
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    int found = 0;
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, 32 * plan->num_warps,
                                                            static_cast<size_t>(bytes));
    }
    if (error != cudaSuccess) {
      return error;
    }
    if (found >= blocks) {
      blocks = found;
      plan->num_kv_buffers = buffers;
      plan->shared_bytes = bytes;
    }
  }
  const int places = std::max(1, blocks) * gpu.num_multiprocessors;

  // Fewer heads than places: part their queries.
  const auto heads = static_cast<int>(shape.batch * shape.heads);
  const int64_t part_floats = int64_t{heads} * keys * 2 * kHeadDim;
  int splits = std::clamp(places / heads, 1, steps);
  splits = static_cast<int>(std::clamp<int64_t>(
      kMaxPartialBytes / (part_floats * static_cast<int64_t>(sizeof(float))), 1, splits));
  plan->split_steps = ceil_div(steps, splits);
  plan->num_splits = ceil_div(steps, plan->split_steps);
  plan->num_items = heads * plan->num_splits;
  plan->num_blocks = std::min(places, plan->num_items);
  plan->dkv_floats = plan->num_splits > 1 ? part_floats : 0;
  plan->dq_floats = plan->num_warps * Traits::kWarpKeys < keys
                        ? int64_t{plan->split_steps} * kStepQueries * kHeadDim
                        : 0;
  return cudaSuccess;
}

template <int kHeadDim>
cudaError_t launch_backward(const BackwardPlan& plan, cudaStream_t stream) {
  if (plan.call.shape.type == DType::kBF16) {
    backward_kernel<Bf16, kHeadDim>
        <<<plan.num_blocks, 32 * plan.num_warps, plan.shared_bytes, stream>>>(plan);
  } else {
    backward_kernel<F16, kHeadDim>
        <<<plan.num_blocks, 32 * plan.num_warps, plan.shared_bytes, stream>>>(plan);
  }
  return cudaGetLastError();
}

}  // namespace kinora::kernels::cuda::attention
