// Attention backward on Hopper over a mask of blocks of 128 queries and 128 keys (BlockMask), for
// head_dim 64, 72 and 128, from Q, K, V, dO, lse and delta = rowsum(dO O):
//   P = exp(scale Q K^T - lse), dS = P (dO V^T - delta)
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
// Two kernels, each with a block of threads for a block of rows that stays in shared memory, while
// the tiles of 64 rows that it has to do with come through a ring by the copy engine: one over
// keys, which sums up dK and dV over queries (S^T = K Q^T), one over queries, which sums up dQ over
// keys. So nothing is added in memory, and results are the same bits each time; the price is that
// S and dP are computed twice, 7 products in place of 5. A warpgroup that computes has 64 of the
// rows, and all its sums in registers.
//
// Speed, a tile of 64 x 64 scores of head_dim 128 of one warpgroup: 1024 cycles of the tensor cores
// over keys, 768 over queries; 64 of exp2; two warpgroups take turns at both.
#include <cstdint>
#include <limits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_wgmma.h"
#include "kinora/kernels/cuda/attention_wgmma_backward.cuh"

namespace kinora::kernels::cuda::attention {
namespace {

constexpr int kStages = 4;
static_assert(kBlockRows == kConsumers * kTileRows);

struct Plan {
  AttentionBackward call;
  float scale_log2 = 0.0F;
  int query_tiles = 0;
  int query_blocks = 0;
  int key_tiles = 0;
  int key_blocks = 0;
  float2* stats = nullptr;  // stats_kernel()'s
};

struct Maps {
  CUtensorMap block[2];  // of the rows that stay: K and V, or Q and dO; boxes of a block
  CUtensorMap tile[2];   // of those that come: Q and dO, or K and V; boxes of a tile
};

/// Shared memory. `over_keys`' tiles have statistics, too.
template <int kHeadDim>
struct Memory {
  static constexpr int kBlockPlane = kBlockRows * kPlaneElements * 2;
  static constexpr int kTilePlane = kTileRows * kPlaneElements * 2;
  static constexpr int kBlockBytes = kPlanes<kHeadDim> * kBlockPlane;
  static constexpr int kTileBytes = kPlanes<kHeadDim> * kTilePlane;

  static constexpr int kBlock = 0;                                   // [2]
  static constexpr int kRing = 2 * kBlockBytes;                      // [kStages][2]
  static constexpr int kStats = kRing + kStages * 2 * kTileBytes;    // [kStages]
  static constexpr int kBlockFull = kStats + kStages * kStatsBytes;  // the block has arrived
  static constexpr int kFull = kBlockFull + 8;                       // [kStages]: a tile has
  static constexpr int kEmpty = kFull + kStages * 8;                 // [kStages]: it has been read
  static constexpr int kBytes = kEmpty + kStages * 8;
  static_assert(kBytes <= 227 * 1024);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// What a block of threads has to do.
struct Work {
  /// @param blocks, offsets, list  of the mask: blocks of rows of a head, and the others of each
  /// @param other_tiles            of all the others
  __device__ __forceinline__ Work(const AttentionShape& shape, int blocks, const int32_t* offsets,
                                  const int32_t* list, int other_tiles)
      : head(static_cast<int>(blockIdx.x) / blocks),
        b(head / static_cast<int>(shape.heads)),
        h(head - b * static_cast<int>(shape.heads)),
        block(static_cast<int>(blockIdx.x) - head * blocks),
        others(offsets, list, block, other_tiles) {}
  int head;  // of all samples
  int b;
  int h;
  int block;  // of its rows
  ListedTiles others;
};

/// What the first thread does. stats: of the head, or null: tiles have none.
template <int kHeadDim>
__device__ __forceinline__ void load_all(const Work& work, const Maps& maps, uint32_t memory,
                                         const float2* stats) {
  using M = Memory<kHeadDim>;
  expect_bytes(memory + M::kBlockFull, 2 * M::kBlockBytes);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    load_rows<kHeadDim>(memory + M::kBlock + which * M::kBlockBytes, M::kBlockPlane,
                        maps.block[which], work.block * kBlockRows, work.h, work.b,
                        memory + M::kBlockFull);
  }
  for (int i = 0; i < work.others.count; ++i) {
    const int slot = i % kStages;
    const uint32_t full = memory + M::kFull + slot * 8;
    const int row = work.others.first_row(i);
    wait_for(memory + M::kEmpty + slot * 8, (i / kStages & 1) ^ 1);
    expect_bytes(full, 2 * M::kTileBytes + (stats != nullptr ? kStatsBytes : 0));
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      load_rows<kHeadDim>(memory + M::kRing + (slot * 2 + which) * M::kTileBytes, M::kTilePlane,
                          maps.tile[which], row, work.h, work.b, full);
    }
    if (stats != nullptr) {
      load_bytes(memory + M::kStats + slot * kStatsBytes, stats + row, kStatsBytes, full);
    }
  }
}

/// Writes 64 rows of a head times `factor`, those below num_rows.
template <typename T, int kHeadDim>
__device__ __forceinline__ void store_sums(const float (&acc)[kHeadDim / 8][4],
                                           const HeadsView& view, const Work& work, int first,
                                           int num_rows, float factor) {
  const Place here = place();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + here.row + 8 * half;
    const bool valid = row < num_rows;
    uint32_t words[kHeadDim / 8];
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      words[n] = pack<T>(acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor);
    }
    store_row(row_of(view, work.b, valid ? row : 0, work.h), valid, here.t, words);
  }
}

/// e = exp(scale S).
__device__ __forceinline__ void exponentiate(float (&s)[8][4], float scale_log2) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = exp2_approx(s[n][i] * scale_log2);
    }
  }
}

/// a b, packed as the operand of a product over their columns.
template <typename T>
__device__ __forceinline__ void pack_products(uint32_t (&words)[8][2], const float (&a)[8][4],
                                              const float (&b)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words[n][half] =
          pack<T>(a[n][2 * half] * b[n][2 * half], a[n][2 * half + 1] * b[n][2 * half + 1]);
    }
  }
}

template <typename T>
__device__ __forceinline__ void pack_values(uint32_t (&words)[8][2], const float (&a)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      words[n][half] = pack<T>(a[n][2 * half], a[n][2 * half + 1]);
    }
  }
}

/// dK and dV of 64 keys.
template <typename T, int kHeadDim>
__device__ __forceinline__ void sum_over_queries(const Plan& plan, const Work& work,
                                                 uint32_t memory, int group) {
  using M = Memory<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  float dk[kChunks][4] = {};
  float dv[kChunks][4] = {};
  pin(dk);
  pin(dv);
  const uint32_t k = memory + M::kBlock + group * kTileRows * 32;
  const uint32_t v = k + M::kBlockBytes;
  wait_for(memory + M::kBlockFull, 0);
#pragma unroll 1
  for (int i = 0; i < work.others.count; ++i) {
    const int slot = i % kStages;
    const uint32_t q = memory + M::kRing + slot * 2 * M::kTileBytes;
    const uint32_t dout = q + M::kTileBytes;
    wait_for(memory + M::kFull + slot * 8, i / kStages & 1);
    float s[8][4];
    float dp[8][4];
    load_stats(s, dp, memory + M::kStats + slot * kStatsBytes);
    pin(s);
    pin(dp);
    begin_products();
    multiply_dim<T, kHeadDim, M::kBlockPlane, M::kTilePlane>(s, k, q);
    commit_products();
    multiply_dim<T, kHeadDim, M::kBlockPlane, M::kTilePlane>(dp, v, dout);
    commit_products();
    wait_products<1>();
    pin(s);
    uint32_t p[8][2];
    uint32_t ds[8][2];
    exponentiate(s, plan.scale_log2);
    pack_values<T>(p, s);
    wait_products<0>();
    pin(dp);
    pack_products<T>(ds, s, dp);
    begin_products();
    multiply_tile<T, kHeadDim, M::kTilePlane>(dv, p, dout);
    multiply_tile<T, kHeadDim, M::kTilePlane>(dk, ds, q);
    commit_products();
    wait_products<0>();
    pin(dv);
    pin(dk);
    arrive_warp(memory + M::kEmpty + slot * 8);
  }
  const AttentionShape& shape = plan.call.shape;
  const int first = work.block * kBlockRows + group * kTileRows;
  const int num_keys = key_range(shape, work.b).count;
  store_sums<T, kHeadDim>(dk, plan.call.dk, work, first, num_keys, shape.scale);
  store_sums<T, kHeadDim>(dv, plan.call.dv, work, first, num_keys, 1.0F);
}

/// dQ of 64 queries.
template <typename T, int kHeadDim>
__device__ __forceinline__ void sum_over_keys(const Plan& plan, const Work& work, uint32_t memory,
                                              int group, const float2* stats) {
  using M = Memory<kHeadDim>;
  float dq[kHeadDim / 8][4] = {};
  pin(dq);
  const uint32_t q = memory + M::kBlock + group * kTileRows * 32;
  const uint32_t dout = q + M::kBlockBytes;
  const int first = work.block * kBlockRows + group * kTileRows;
  const int num_keys = key_range(plan.call.shape, work.b).count;
  float2 own[2] = {};  // statistics of the thread's rows
  if (first < plan.query_tiles * kTileRows) {
    const int row = first + place().row;
    own[0] = stats[row];
    own[1] = stats[row + 8];
  }
  wait_for(memory + M::kBlockFull, 0);
#pragma unroll 1
  for (int i = 0; i < work.others.count; ++i) {
    const int slot = i % kStages;
    const uint32_t k = memory + M::kRing + slot * 2 * M::kTileBytes;
    const uint32_t v = k + M::kTileBytes;
    float s[8][4];
    float dp[8][4];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[n][j] = own[j / 2].x;
        dp[n][j] = own[j / 2].y;
      }
    }
    const int count = num_keys - work.others.first_row(i);
    wait_for(memory + M::kFull + slot * 8, i / kStages & 1);
    pin(s);
    pin(dp);
    begin_products();
    multiply_dim<T, kHeadDim, M::kBlockPlane, M::kTilePlane>(s, q, k);
    commit_products();
    multiply_dim<T, kHeadDim, M::kBlockPlane, M::kTilePlane>(dp, dout, v);
    commit_products();
    wait_products<1>();
    pin(s);
    if (count < kTileRows) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (8 * n + 2 * place().t + j % 2 >= count) {
            s[n][j] = -INFINITY;
          }
        }
      }
    }
    exponentiate(s, plan.scale_log2);
    wait_products<0>();
    pin(dp);
    uint32_t ds[8][2];
    pack_products<T>(ds, s, dp);
    begin_products();
    multiply_tile<T, kHeadDim, M::kTilePlane>(dq, ds, k);
    commit_products();
    wait_products<0>();
    pin(dq);
    arrive_warp(memory + M::kEmpty + slot * 8);
  }
  store_sums<T, kHeadDim>(dq, plan.call.dq, work, first,
                          static_cast<int>(plan.call.shape.query_length), plan.call.shape.scale);
}

template <typename T, int kHeadDim, bool kOverKeys>
__device__ __forceinline__ void walk(const Plan& plan, const Maps& maps) {
  using M = Memory<kHeadDim>;
  const uint32_t memory = shared_base();
  const int thread = static_cast<int>(threadIdx.x);
  // The same in all lanes, which the compiler cannot know.
  const int warp = __shfl_sync(0xffffffffU, thread >> 5, 0);
  if (thread == 0) {
    constexpr int kWarps = kConsumers * kGroupThreads / 32;
    init_barrier(memory + M::kBlockFull, 1);
    for (int slot = 0; slot < kStages; ++slot) {
      init_barrier(memory + M::kFull + slot * 8, 1);
      init_barrier(memory + M::kEmpty + slot * 8, kWarps);
    }
    publish_shared();
  }
  __syncthreads();
  const AttentionShape& shape = plan.call.shape;
  const BlockMask& mask = shape.mask;
  const Work work =
      kOverKeys
          ? Work(shape, plan.key_blocks, mask.query_offsets, mask.query_blocks, plan.query_tiles)
          : Work(shape, plan.query_blocks, mask.key_offsets, mask.key_blocks, plan.key_tiles);
  const float2* stats = plan.stats + static_cast<int64_t>(work.head) * plan.query_tiles * kTileRows;
  if (warp < 4) {
    set_registers<24, false>();
    if (warp == 0 && is_elected()) {
      load_all<kHeadDim>(work, maps, memory, kOverKeys ? stats : nullptr);
    }
  } else {
    set_registers<240, true>();
    if constexpr (kOverKeys) {
      sum_over_queries<T, kHeadDim>(plan, work, memory, warp / 4 - 1);
    } else {
      sum_over_keys<T, kHeadDim>(plan, work, memory, warp / 4 - 1, stats);
    }
  }
}

#endif

/// kOverKeys: of blocks of keys; else of queries.
template <typename T, int kHeadDim, bool kOverKeys>
__global__ void __launch_bounds__(kThreads, 1)
    blocks_backward_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  walk<T, kHeadDim, kOverKeys>(plan, maps);
#else
  __trap();
#endif
}

template <typename T, int kHeadDim, bool kOverKeys>
cudaError_t launch_half(const Plan& plan, cudaStream_t stream) {
  const AttentionBackward& call = plan.call;
  const AttentionShape& shape = call.shape;
  const HeadsView* queries[] = {&call.q, &call.dout};
  const HeadsView* keys[] = {&call.k, &call.v};
  Maps maps;
  for (int i = 0; i < 2; ++i) {
    const cudaError_t of_queries =
        make_tensor_map(*queries[i], shape, shape.query_length, kOverKeys ? kTileRows : kBlockRows,
                        kOverKeys ? &maps.tile[i] : &maps.block[i]);
    const cudaError_t of_keys =
        make_tensor_map(*keys[i], shape, shape.key_length, kOverKeys ? kBlockRows : kTileRows,
                        kOverKeys ? &maps.block[i] : &maps.tile[i]);
    if (of_queries != cudaSuccess || of_keys != cudaSuccess) {
      return of_queries != cudaSuccess ? of_queries : of_keys;
    }
  }
  const auto kernel = blocks_backward_kernel<T, kHeadDim, kOverKeys>;
  constexpr int kBytes = Memory<kHeadDim>::kBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) {
    return error;
  }
  const auto blocks = static_cast<unsigned>(shape.batch * shape.heads *
                                            (kOverKeys ? plan.key_blocks : plan.query_blocks));
  kernel<<<blocks, kThreads, kBytes, stream>>>(plan, maps);
  return cudaGetLastError();
}

template <typename T, int kHeadDim>
cudaError_t launch_typed(const Plan& plan, cudaStream_t stream) {
  cudaError_t error = launch_stats<T, kHeadDim>(plan.call, plan.query_tiles, plan.stats, stream);
  if (error == cudaSuccess) {
    error = launch_half<T, kHeadDim, true>(plan, stream);
  }
  return error == cudaSuccess ? launch_half<T, kHeadDim, false>(plan, stream) : error;
}

template <int kHeadDim>
cudaError_t launch(const Plan& plan, cudaStream_t stream) {
  return plan.call.shape.type == DType::kBF16 ? launch_typed<Bf16, kHeadDim>(plan, stream)
                                              : launch_typed<F16, kHeadDim>(plan, stream);
}

int blocks_of(int64_t rows) {
  return static_cast<int>(ceil_div(rows, kBlockRows));
}

}  // namespace

cudaError_t launch_blocks_backward(const AttentionBackward& call, void* workspace,
                                   cudaStream_t stream) {
  Plan plan;
  plan.call = call;
  plan.scale_log2 = call.shape.scale * kLog2E;
  plan.query_tiles = static_cast<int>(tiles_of(call.shape.query_length));
  plan.query_blocks = blocks_of(call.shape.query_length);
  plan.key_tiles = static_cast<int>(tiles_of(call.shape.key_length));
  plan.key_blocks = blocks_of(call.shape.key_length);
  plan.stats = static_cast<float2*>(workspace);
  switch (call.shape.head_dim) {
    case 64:
      return launch<64>(plan, stream);
    case 72:
      return launch<72>(plan, stream);
    default:
      return launch<128>(plan, stream);
  }
}

}  // namespace kinora::kernels::cuda::attention
