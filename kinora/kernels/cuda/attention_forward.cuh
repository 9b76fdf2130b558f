#pragma once

// Attention forward: O = softmax(scale Q K^T) V and lse, for one head_dim.
//
// Layout: a block has up to 4 warps (8 for wide heads) and works on one head; a warp owns 32
// queries (16 for wide heads), whose Q fragments and output stay in registers. Keys and values
// stream through a ring of stages in shared memory (cp.async, one barrier a stage); where all keys
// fit into the ring, they are loaded once, and the block goes over several tiles of queries. A
// stage is worked on in chunks of 16 keys: S (2 x 2 tiles), softmax, P V with P going from
// accumulators to operands in registers. Short sequences: blocks of one warp.
// The running maximum is only raised when a score exceeds it by kSlack (in powers of two): the
// result is the same, sums are at most 2^kSlack larger, and the rescaling of the output, with its
// shuffles, is rare after the first chunk.
//
// Speed at N 256, head_dim 72, a head on an SM of an H200: 9.4 M multiply-adds are 7.3 k cycles of
// mma.sync at the 1,290 a cycle that it reaches; ldmatrix 4.6 k (a fragment of K or V serves two
// 16-row tiles); exp2 4.1 k; memory 147 KB = 8.2 k. Three blocks an SM (3 x 74 KB, at most 168
// registers) overlap them.
#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_plan.h"
#include "kinora/kernels/cuda/attention_tile.cuh"

namespace kinora::kernels::cuda::attention {

template <int kHeadDim>
struct ForwardTraits {
  static constexpr int kMTiles = kHeadDim <= 80 ? 2 : 1;
  static constexpr int kWarpQueries = 16 * kMTiles;
  static constexpr int kMaxWarps = kHeadDim <= 80 ? 4 : 8;
  static constexpr int kMinBlocks = kHeadDim <= 72 ? 3 : kHeadDim <= 80 ? 2 : 1;
  static constexpr int kMaxTileKeys = 64;
  static constexpr int kStages = 4;
};

/// Q's fragments of a warp: [m][chunk][half] has (row 16 m + 8 half + g, elements 8 chunk + 2 t..).
template <int kHeadDim, int kMTiles>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kMTiles][kHeadDim / 8][2],
                                             const ForwardPlan& plan, int b, int h, int first_row,
                                             int g, int t) {
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + m * 16 + half * 8 + g;
      const bool valid = row < static_cast<int>(plan.call.shape.query_length);
      const uint16_t* source = row_of(plan.call.q, b, valid ? row : 0, h);
#pragma unroll
      for (int c = 0; c + 4 <= kChunks; c += 4) {
        uint4 chunk = make_uint4(0, 0, 0, 0);
        if (valid) {
          chunk = *reinterpret_cast<const uint4*>(source + (c + t) * 8);
        }
        uint32_t r[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        transpose_quad(r, t);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          q[m][c + i][half] = r[i];
        }
      }
#pragma unroll
      for (int c = kChunks / 4 * 4; c < kChunks; ++c) {
        q[m][c][half] = valid ? *reinterpret_cast<const uint32_t*>(source + c * 8 + 2 * t) : 0;
      }
    }
  }
}

/// A warp's output so far.
template <int kHeadDim, int kMTiles>
struct ForwardState {
  float out[kMTiles][kHeadDim / 8][4];
  float max[kMTiles][2];  ///< the reference of the exponents, in powers of two
  float sum[kMTiles][2];  ///< this lane's columns
};

/// Adds 16 keys to the output; those from num_keys on do not count.
/// @param k, v  addresses of the first key's rows
template <typename T, int kHeadDim, int kMTiles>
__device__ __forceinline__ void add_keys(ForwardState<kHeadDim, kMTiles>& state,
                                         const uint32_t (&q)[kMTiles][kHeadDim / 8][2], uint32_t k,
                                         uint32_t v, int num_keys, float scale_log2, int lane) {
  using R = Row<kHeadDim>;
  const int t = lane & 3;
  float s[kMTiles][2][4] = {};
  const uint32_t k_lane =
      k + ((lane & 7) + ((lane >> 4) << 3)) * R::kPitch + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (int step = 0; step < R::kChunks / 2; ++step) {
    uint32_t b[4];  // b0, b1 of keys 0-7, then of keys 8-15
    load_matrices(b, k_lane + step * 32);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const uint32_t a[4] = {q[m][2 * step][0], q[m][2 * step][1], q[m][2 * step + 1][0],
                             q[m][2 * step + 1][1]};
      multiply_add16<T>(s[m][0], a, b[0], b[1]);
      multiply_add16<T>(s[m][1], a, b[2], b[3]);
    }
  }
  if constexpr (R::kChunks % 2 == 1) {
    constexpr int kLast = R::kChunks - 1;
    uint32_t b[2];  // b0 of keys 0-7, of keys 8-15
    load_matrices(b, k + (lane & 15) * R::kPitch + kLast * 16);
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      multiply_add8<T>(s[m][0], q[m][kLast][0], q[m][kLast][1], b[0]);
      multiply_add8<T>(s[m][1], q[m][kLast][0], q[m][kLast][1], b[1]);
    }
  }
  if (num_keys < 16) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i / 4 * 8 + 2 * t + i % 2 >= num_keys) {
          s[m][i / 4][i % 4] = -INFINITY;
        }
      }
    }
  }

  float local[kMTiles][2];
  bool exceeds = false;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      local[m][half] = scale_log2 * fmaxf(fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]),
                                          fmaxf(s[m][1][2 * half], s[m][1][2 * half + 1]));
      exceeds = exceeds || local[m][half] > state.max[m][half] + kSlack;
    }
  }
  if (any_lane(exceeds)) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float highest = fmaxf(local[m][half], shuffle_xor(local[m][half], 1));
        highest = fmaxf(highest, shuffle_xor(highest, 2));
        highest = fmaxf(highest, state.max[m][half]);
        // A row without a number so far (all NaN) keeps -inf, and has nothing to rescale.
        const float factor =
            highest == -INFINITY ? 1.0F : exp2_approx(state.max[m][half] - highest);
        state.max[m][half] = highest;
        state.sum[m][half] *= factor;
#pragma unroll
        for (int n = 0; n < R::kChunks; ++n) {
          state.out[m][n][2 * half] *= factor;
          state.out[m][n][2 * half + 1] *= factor;
        }
      }
    }
  }

  uint32_t p[kMTiles][2][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = exp2_approx(s[m][n][2 * half] * scale_log2 - state.max[m][half]);
        const float high = exp2_approx(s[m][n][2 * half + 1] * scale_log2 - state.max[m][half]);
        state.sum[m][half] += low + high;
        p[m][n][half] = pack<T>(low, high);
      }
    }
  }
  multiply_packed<T, kHeadDim, kMTiles, 2>(state.out, p, v, lane);
}

template <typename T, int kHeadDim, int kMTiles>
__device__ __forceinline__ void store_output(ForwardState<kHeadDim, kMTiles>& state,
                                             const ForwardPlan& plan, int b, int h, int first_row,
                                             bool has_keys, int g, int t) {
  constexpr int kChunks = kHeadDim / 8;
  const AttentionShape& shape = plan.call.shape;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + m * 16 + half * 8 + g;
      const bool valid = row < static_cast<int>(shape.query_length);
      float sum = state.sum[m][half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const float inverse = has_keys ? 1.0F / sum : 0.0F;
      uint32_t words[kChunks];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        words[c] =
            pack<T>(state.out[m][c][2 * half] * inverse, state.out[m][c][2 * half + 1] * inverse);
      }
      store_row(row_of(plan.call.out, b, valid ? row : 0, h), valid, t, words);
      if (plan.call.lse != nullptr && valid && t == 0) {
        plan.call.lse[(static_cast<int64_t>(b) * shape.heads + h) * shape.query_length + row] =
            (state.max[m][half] + log2f(sum)) * kLn2;
      }
    }
  }
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(32 * ForwardTraits<kHeadDim>::kMaxWarps,
                                  ForwardTraits<kHeadDim>::kMinBlocks)
    forward_kernel(const __grid_constant__ ForwardPlan plan) {
  using R = Row<kHeadDim>;
  constexpr int kMTiles = ForwardTraits<kHeadDim>::kMTiles;
  constexpr int kWarpQueries = ForwardTraits<kHeadDim>::kWarpQueries;
  const AttentionShape& shape = plan.call.shape;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int head = static_cast<int>(blockIdx.x) / plan.num_groups;
  const int group = static_cast<int>(blockIdx.x) - head * plan.num_groups;
  const int b = head / static_cast<int>(shape.heads);
  const int h = head - b * static_cast<int>(shape.heads);

  const KeyRange keys = key_range(shape, b);
  const uint16_t* k = row_of(plan.call.k, keys.b, keys.begin, h);
  const uint16_t* v = row_of(plan.call.v, keys.b, keys.begin, h);
  const int tile_keys = plan.tile_keys;
  const int num_tiles = ceil_div(keys.count, tile_keys);
  const int pass_queries = plan.num_warps * kWarpQueries;
  const int first_query = group * plan.num_passes * pass_queries;
  const int num_passes = min(
      plan.num_passes, ceil_div(static_cast<int>(shape.query_length) - first_query, pass_queries));
  const bool resident = num_tiles <= plan.num_stages;
  const int num_loads = resident ? num_tiles : num_tiles * num_passes;

  // Tile i of the sequence of loads goes to slot i % num_stages. One group of copies a load, empty
  // ones at the end, so that "all but the youngest num_stages - 2" always means the next tile.
  const uint32_t ring = shared_base();
  const int v_offset = tile_keys * R::kPitch;
  const int stage_bytes = 2 * v_offset;
  int load = 0;
  int load_tile = 0;
  int load_slot = 0;
  const auto start_load = [&] {
    if (load < num_loads) {
      const int first_key = load_tile * tile_keys;
      const int count = min(tile_keys, keys.count - first_key);
      const int num_chunks = round_up(count, 16) * R::kChunks;
      const uint32_t stage = ring + load_slot * stage_bytes;
      copy_chunks<kHeadDim>(stage, k + first_key * plan.call.k.row_stride, plan.call.k.row_stride,
                            count, 0, num_chunks);
      copy_chunks<kHeadDim>(stage + v_offset, v + first_key * plan.call.v.row_stride,
                            plan.call.v.row_stride, count, 0, num_chunks);
    }
    commit_copies();
    ++load;
    load_tile = load_tile + 1 == num_tiles ? 0 : load_tile + 1;
    load_slot = load_slot + 1 == plan.num_stages ? 0 : load_slot + 1;
  };
  for (int i = 0; i + 1 < plan.num_stages; ++i) {
    start_load();
  }

  int slot = 0;
  for (int pass = 0; pass < num_passes; ++pass) {
    const int first_row = first_query + pass * pass_queries + warp * kWarpQueries;
    const bool active = first_row < static_cast<int>(shape.query_length);
    uint32_t q[kMTiles][R::kChunks][2];
    load_queries<kHeadDim, kMTiles>(q, plan, b, h, first_row, g, t);
    ForwardState<kHeadDim, kMTiles> state = {};
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      state.max[m][0] = -INFINITY;
      state.max[m][1] = -INFINITY;
    }
    slot = resident ? 0 : slot;
    for (int tile = 0; tile < num_tiles; ++tile) {
      if (!resident || pass == 0) {
        if (plan.num_stages == 2) {
          wait_copies<0>();
        } else if (plan.num_stages == 3) {
          wait_copies<1>();
        } else {
          wait_copies<ForwardTraits<kHeadDim>::kStages - 2>();
        }
        __syncthreads();
        start_load();  // into the slot that the barrier has shown to be free
      }
      if (active) {
        const uint32_t stage = ring + slot * stage_bytes;
        const int count = min(tile_keys, keys.count - tile * tile_keys);
#pragma unroll 1
        for (int key = 0; key < count; key += 16) {
          add_keys<T>(state, q, stage + key * R::kPitch, stage + v_offset + key * R::kPitch,
                      count - key, plan.scale_log2, lane);
        }
      }
      slot = slot + 1 == plan.num_stages ? 0 : slot + 1;
    }
    if (active) {
      store_output<T>(state, plan, b, h, first_row, keys.count > 0, g, t);
    }
  }
}

template <int kHeadDim>
ForwardPlan plan_forward(const AttentionForward& call, const Gpu& gpu) {
  using Traits = ForwardTraits<kHeadDim>;
  const AttentionShape& shape = call.shape;
  ForwardPlan plan;
  plan.call = call;
  plan.scale_log2 = shape.scale * kLog2E;
  const auto queries = static_cast<int>(shape.query_length);
  const auto keys = static_cast<int>(shape.key_length);
  plan.num_warps = std::min(Traits::kMaxWarps, ceil_div(queries, Traits::kWarpQueries));
  plan.tile_keys = std::min(Traits::kMaxTileKeys, round_up(keys, 16));
  while (2 * 2 * plan.tile_keys * Row<kHeadDim>::kPitch > gpu.shared_bytes) {
    plan.tile_keys = round_up(plan.tile_keys / 2, 16);
  }
  const int num_tiles = ceil_div(keys, plan.tile_keys);
  const int stage_bytes = 2 * plan.tile_keys * Row<kHeadDim>::kPitch;
  plan.num_stages = std::min(Traits::kStages, gpu.shared_bytes / stage_bytes);
  plan.num_stages = std::max(2, std::min(plan.num_stages, num_tiles));
  plan.shared_bytes = std::min(plan.num_stages, num_tiles) * stage_bytes;
  const auto heads = static_cast<int>(shape.batch * shape.heads);
  const int pass_queries = plan.num_warps * Traits::kWarpQueries;
  const int num_passes = ceil_div(queries, pass_queries);
  // Keys that stay in shared memory are best used for all queries of the head, as long as there is
  // a block for every place.
  const int places = gpu.num_multiprocessors * Traits::kMinBlocks;
  plan.num_passes = 1;
  if (num_tiles <= plan.num_stages) {
    const int wanted_groups = std::max(1, ceil_div(4 * places, heads));
    plan.num_passes = std::max(1, num_passes / wanted_groups);
  }
  plan.num_groups = ceil_div(num_passes, plan.num_passes);
  plan.num_blocks = heads * plan.num_groups;
  return plan;
}

template <typename T, int kHeadDim>
cudaError_t launch_forward_as(const ForwardPlan& plan, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      forward_kernel<T, kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  forward_kernel<T, kHeadDim>
      <<<plan.num_blocks, 32 * plan.num_warps, plan.shared_bytes, stream>>>(plan);
  return cudaGetLastError();
}

template <int kHeadDim>
cudaError_t launch_forward(const AttentionForward& call, const Gpu& gpu, cudaStream_t stream) {
  const ForwardPlan plan = plan_forward<kHeadDim>(call, gpu);
  return call.shape.type == DType::kBF16 ? launch_forward_as<Bf16, kHeadDim>(plan, stream)
                                         : launch_forward_as<F16, kHeadDim>(plan, stream);
}

}  // namespace kinora::kernels::cuda::attention
