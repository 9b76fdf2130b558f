// Attention backward with Hopper's warpgroup products, for head_dim 64 and 72, from Q, K, V, dO,
// lse and delta = rowsum(dO O), which a small kernel computes first:
//   P = exp(scale Q K^T - lse), dS = P (dO V^T - delta)
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K
// Five products, no atomic additions, the same bits each time.
//
// Layout: a block has three warpgroups and owns 256 keys of a head. A thread of the first one feeds
// the copy engine; the other two compute. K and V stay in shared memory, dK and dV in registers (a
// warpgroup has twice 64 keys: 144 registers a thread at head_dim 72). The block walks over the
// queries in tiles of 64 that come through a ring of two. All is computed transposed (S^T = K Q^T),
// so that P^T and dS^T go from accumulators to operands in registers; dS^T also goes to shared
// memory, from where the block computes the tile's dQ, each warpgroup half of head_dim. More than
// 256 keys are shared by a cluster of 2, 4 or 8 blocks that walk in step; their parts of dQ are
// written into the shared memory of the block that sums up these rows, always in the same order, a
// tile later. Blocks are persistent: the next head's K, V and first queries are on their way while
// dK and dV are written.
//
// Speed at head_dim 72: a tile of 64 queries and 256 keys is 3.0 k cycles of the tensor cores, as
// many of shared memory, 1.0 k of exp2. N 256: a head's memory, 295 KB, is 16 k cycles at 18 bytes
// a cycle and SM, as much as its four tiles need.
#include <algorithm>
#include <limits>

#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/attention_wgmma.h"
#include "kinora/kernels/cuda/attention_wgmma_backward.cuh"

namespace kinora::kernels::cuda::attention {
namespace {

constexpr int kSummers = kGroupThreads - 32;  // threads that sum up parts of dQ
constexpr int kKeys = 256;                    // of a block
constexpr int kQueries = kTileRows;
constexpr int kGroupKeys = 128;
constexpr int kSubKeys = 64;  // of a product
constexpr int kMaxCluster = 8;
constexpr int kDsPlane = kKeys * 16;
constexpr int kDsBytes = kQueries / 8 * kDsPlane;

struct Plan {
  AttentionBackward call;
  float scale_log2 = 0.0F;
  int num_tiles = 0;              // of queries
  int num_heads = 0;              // batch heads
  uint32_t heads_reciprocal = 0;  // 2^32 / heads, rounded up: exact for batch heads^2 < 2^32
  Rounds rounds;                  // of clusters over the heads
  int cluster = 0;                // blocks that share a head
  float2* stats = nullptr;        // stats_kernel()'s
};

/// Shared memory. K and V of heads take turns in a ring of their own; where the parts of dQ leave
/// room, it has a third place, so that the next V is there before this head ends.
template <int kHeadDim, bool kCluster>
struct Memory {
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr int kKeyPlane = kKeys * 32;
  static constexpr int kQueryPlane = kQueries * 32;
  static constexpr int kKeyBytes = kPlanes<kHeadDim> * kKeyPlane;      // K or V
  static constexpr int kQueryBytes = kPlanes<kHeadDim> * kQueryPlane;  // Q or dO of a tile
  static constexpr int kPartBytes = kQueries * kHeadDim * static_cast<int>(sizeof(float));
  static constexpr int kKeySlots = kCluster ? 2 : 3;

  static constexpr int kKeyRing = 0;                              // [kKeySlots] K or V
  static constexpr int kRing = kKeyRing + kKeySlots * kKeyBytes;  // [2][Q, dO]
  static constexpr int kDs = kRing + 4 * kQueryBytes;             // [2] dS^T
  static constexpr int kStats = kDs + 2 * kDsBytes;               // [2]
  static constexpr int kBarriers = kStats + 2 * kStatsBytes;
  static constexpr int kParts = kBarriers + 160;  // [2] parts of dQ [cluster][rows][head_dim]
  static constexpr int kBytes = kParts + (kCluster ? 2 * kPartBytes : 0);

  static constexpr int kFull = kBarriers;       // [2]: the tile has arrived
  static constexpr int kEmpty = kFull + 16;     // [2]: it has been read
  static constexpr int kKeyFull = kEmpty + 16;  // [kKeySlots]
  static constexpr int kKeyEmpty = kKeyFull + 24;
  static constexpr int kDsFull = kKeyEmpty + 24;       // [2]: dS of all keys is there
  static constexpr int kDsEmpty = kDsFull + 16;        // [2]: dQ has been made of it
  static constexpr int kPartsFull = kDsEmpty + 16;     // [2]: all parts are there
  static constexpr int kPartsEmpty = kPartsFull + 16;  // [2]: they have been summed up
};

struct Maps {
  CUtensorMap q, k, v, dout;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/// The same address in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {
  uint32_t result = 0;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

/// Stores to another block, whose barrier counts the bytes that have arrived.
__device__ __forceinline__ void store_cluster(uint32_t address, float x, float y,
                                              uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(address),
      "f"(x), "f"(y), "r"(barrier)
      : "memory");
}

/// Arrives at a barrier of any block of the cluster.
__device__ __forceinline__ void arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Of the threads that sum up parts of dQ.
__device__ __forceinline__ void sync_summers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kSummers) : "memory");
}

/// The head that a block works on.
struct Head {
  __device__ __forceinline__ Head(const Plan& plan, int number)
      : b(static_cast<int>(plan.heads_reciprocal == 0
                               ? static_cast<uint32_t>(number)
                               : __umulhi(static_cast<uint32_t>(number), plan.heads_reciprocal))),
        h(number - b * static_cast<int>(plan.call.shape.heads)) {}
  int b;
  int h;
};

/// Sums up this block's rows of a tile of dQ over the blocks of the cluster, in their order.
template <typename T, int kHeadDim>
__device__ __forceinline__ void sum_parts(const Plan& plan, int number, int tile, int rank,
                                          int thread, uint32_t parts) {
  constexpr int kWords = kHeadDim / 4;  // of 16 bytes
  const AttentionShape& shape = plan.call.shape;
  const int rows = kQueries / plan.cluster;
  const Head head(plan, number);
  for (int i = thread; i < rows * kWords; i += kSummers) {
    const int row = i / kWords;
    float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    for (int source = 0; source < plan.cluster; ++source) {
      const float4 part = load_shared_float4(parts + (source * rows * kWords + i) * 16);
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    const int query = tile * kQueries + rank * rows + row;
    if (query < static_cast<int>(shape.query_length)) {
      *reinterpret_cast<uint2*>(row_of(plan.call.dq, head.b, query, head.h) +
                                (i - row * kWords) * 4) =
          make_uint2(pack<T>(sum.x * shape.scale, sum.y * shape.scale),
                     pack<T>(sum.z * shape.scale, sum.w * shape.scale));
    }
  }
}

/// What the first thread does.
template <int kHeadDim, bool kCluster>
__device__ __forceinline__ void load_heads(const Plan& plan, const Maps& maps, uint32_t memory,
                                           int rank) {
  using M = Memory<kHeadDim, kCluster>;
  int count = 0;  // tiles so far
  int loads = 0;  // of K and V: V, K, V, K, ... of the heads in order
  const auto load_keys = [&](const CUtensorMap& map, const Head& head) {
    const int slot = loads % M::kKeySlots;
    const uint32_t full = memory + M::kKeyFull + slot * 8;
    wait_for(memory + M::kKeyEmpty + slot * 8, (loads / M::kKeySlots & 1) ^ 1);
    expect_bytes(full, M::kKeyBytes);
    load_rows<kHeadDim>(memory + M::kKeyRing + slot * M::kKeyBytes, M::kKeyPlane, map, rank * kKeys,
                        head.h, head.b, full);
    ++loads;
  };
  for (int number = plan.rounds.first(static_cast<int>(blockIdx.x) / plan.cluster);
       number < plan.num_heads; number = plan.rounds.next(number)) {
    const Head head(plan, number);
    for (int tile = 0; tile < plan.num_tiles; ++tile, ++count) {
      const int slot = count & 1;
      const uint32_t full = memory + M::kFull + slot * 8;
      const uint32_t ring = memory + M::kRing + slot * 2 * M::kQueryBytes;
      if (tile == 0 && loads % 2 == 0) {
        load_keys(maps.v, head);
      }
      wait_for(memory + M::kEmpty + slot * 8, (count >> 1 & 1) ^ 1);
      expect_bytes(full, 2 * M::kQueryBytes + kStatsBytes);
      load_rows<kHeadDim>(ring, M::kQueryPlane, maps.q, tile * kQueries, head.h, head.b, full);
      load_rows<kHeadDim>(ring + M::kQueryBytes, M::kQueryPlane, maps.dout, tile * kQueries, head.h,
                          head.b, full);
      load_bytes(memory + M::kStats + slot * kStatsBytes,
                 plan.stats + (static_cast<int64_t>(number) * plan.num_tiles + tile) * kQueries,
                 kStatsBytes, full);
      if (tile == 0) {
        load_keys(maps.k, head);
      }
      // The next V, which is in no hurry.
      const int next = plan.rounds.next(number);
      if (M::kKeySlots > 2 && tile == min(1, plan.num_tiles - 1) && next < plan.num_heads) {
        load_keys(maps.v, Head(plan, next));
      }
    }
  }
}

/// What the other warps of the first warpgroup do in a cluster.
template <typename T, int kHeadDim>
__device__ __forceinline__ void sum_heads(const Plan& plan, uint32_t memory, int thread, int rank) {
  using M = Memory<kHeadDim, true>;
  int count = 0;
  for (int number = plan.rounds.first(static_cast<int>(blockIdx.x) / plan.cluster);
       number < plan.num_heads; number = plan.rounds.next(number)) {
    for (int tile = 0; tile < plan.num_tiles; ++tile, ++count) {
      const int slot = count & 1;
      wait_for(memory + M::kPartsFull + slot * 8, count >> 1 & 1);
      if (thread == 0) {
        expect_bytes(memory + M::kPartsFull + slot * 8, M::kPartBytes);
      }
      sum_parts<T, kHeadDim>(plan, number, tile, rank, thread,
                             memory + M::kParts + slot * M::kPartBytes);
      sync_summers();
      if (thread < plan.cluster) {
        arrive_cluster(address_in(memory + M::kPartsEmpty + slot * 8, thread));
      }
    }
  }
}

/// P^T and dS^T / scale of 64 keys and 64 queries, packed, from S^T - lse / scale and dP^T - delta;
/// dS^T also to shared memory, plane of 8 queries after plane, for the product over the keys.
/// @param ds        the first key's row in plane 0
/// @param num_keys  keys from the product's first row on
template <typename T>
__device__ __forceinline__ void differentiate(uint32_t (&p)[8][2], uint32_t (&dsw)[8][2],
                                              float (&s)[8][4], const float (&dp)[8][4],
                                              uint32_t ds, float scale_log2, int num_keys) {
  const Place here = place();
  if (num_keys < kSubKeys) {  // zero rows of K: P would be exp(-lse)
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (here.row + i / 2 * 8 >= num_keys) {
          s[n][i] = -INFINITY;
        }
      }
    }
  }
  ds += here.row * 16 + here.t * 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = exp2_approx(s[n][2 * half] * scale_log2);
      const float high = exp2_approx(s[n][2 * half + 1] * scale_log2);
      p[n][half] = pack<T>(low, high);
      dsw[n][half] = pack<T>(low * dp[n][2 * half], high * dp[n][2 * half + 1]);
      store_shared(ds + n * kDsPlane + half * 128, dsw[n][half]);
    }
    __syncwarp();  // keeps the compiler from doing all at once, with registers that are not there
  }
}

/// Writes acc [64 x 8 kTiles] times `factor`, its first `num_chunks` chunks, from `rows` on.
/// @param num_rows  rows that exist
template <typename T, int kTiles>
__device__ __forceinline__ void store_rows(const float (&acc)[kTiles][4], uint16_t* rows,
                                           int64_t row_stride, int num_rows, float factor,
                                           int num_chunks) {
  const Place here = place();
  uint32_t words[2][kTiles];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      words[half][n] = pack<T>(acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor);
    }
  }
  uint32_t chunk[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chunk[half][i] = words[half][i];
    }
    transpose_quad(chunk[half], here.t);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (here.row + 8 * half < num_rows) {
      uint16_t* row = rows + (here.row + 8 * half) * row_stride;
      store_global(row + here.t * 8,
                   make_uint4(chunk[half][0], chunk[half][1], chunk[half][2], chunk[half][3]));
#pragma unroll
      for (int n = 4; n < kTiles; ++n) {
        if (n < num_chunks) {
          *reinterpret_cast<uint32_t*>(row + n * 8 + 2 * here.t) = words[half][n];
        }
      }
    }
  }
}

/// The same for a whole head_dim, row by row in memory (parts of sectors cost a read of the rest),
/// through the warp's own places in dS^T: 256 bytes in each plane of each 64 keys. Place r has row
/// r of 16, which begins at chunk r modulo 8: chunks of a row and rows of a chunk then lie in
/// different banks.
/// @param staging  the first key's row in plane 0
template <typename T, int kTiles>
__device__ __forceinline__ void store_staged(const float (&acc)[kTiles][4], uint32_t staging,
                                             uint16_t* rows, int64_t row_stride, int num_rows,
                                             float factor) {
  static_assert(7 + kTiles <= 16);
  constexpr int kPlace = kDsPlane + 16;
  constexpr int kLaterPlace = kSubKeys * 16;  // of row 8
  const Place here = place();
  const int first = here.row / 16 * 16;  // row of the warp
  const int g = here.row % 8;
  staging += first * 16;
  const uint32_t mine = staging + g * kPlace + here.t * 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_shared(mine + half * kLaterPlace + n * 16,
                   pack<T>(acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor));
    }
  }
  __syncwarp();
  const int lane = g * 4 + here.t;
  int row = lane / kTiles;
  int chunk = lane - row * kTiles;
#pragma unroll
  for (int i = 0; i < 16 * kTiles; i += 32) {
    if (first + row < num_rows && (i + 32 <= 16 * kTiles || row < 16)) {
      store_global(
          rows + (first + row) * row_stride + chunk * 8,
          load_shared_uint4(staging + row % 8 * kPlace + row / 8 * kLaterPlace + chunk * 16));
    }
    row += 32 / kTiles;
    chunk += 32 % kTiles;
    if (chunk >= kTiles) {
      ++row;
      chunk -= kTiles;
    }
  }
  __syncwarp();
}

/// kTiles chunks of a tile's dQ.
/// @param k  the plane of K where they begin
template <typename T, int kHeadDim, int kTiles>
__device__ __forceinline__ void multiply_keys(float (&acc)[kTiles][4], uint32_t k, uint32_t ds) {
  using M = Memory<kHeadDim, false>;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    Product<T, kTiles>::template of_shared<1>(acc, operand(ds + step * 256, 128, kDsPlane, 0),
                                              over_rows(k + step * 512, M::kKeyPlane),
                                              step > 0 ? 1 : 0);
  }
}

/// Sends this block's part of dQ to the blocks that sum up its rows.
/// @param parts    of this tile
/// @param barrier  that counts them
template <int kHeadDim, int kTiles>
__device__ __forceinline__ void send_part(const float (&acc)[kTiles][4], const Plan& plan, int rank,
                                          uint32_t parts, uint32_t barrier, int first_chunk,
                                          int num_chunks) {
  const Place here = place();
  const int rows = kQueries / plan.cluster;  // of a block
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = here.row + 8 * half;
    const int owner = row / rows;
    const uint32_t target = address_in(
        parts + ((rank * rows + row - owner * rows) * kHeadDim + first_chunk * 8 + 2 * here.t) *
                    static_cast<int>(sizeof(float)),
        owner);
    const uint32_t counter = address_in(barrier, owner);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n < num_chunks) {
        store_cluster(target + n * 32, acc[n][2 * half], acc[n][2 * half + 1], counter);
      }
    }
  }
}

/// The same number, of which the compiler knows nothing: it would else keep all descriptors that
/// can be made of it.
__device__ __forceinline__ uint32_t hidden(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// What another warpgroup does. A tile's dQ is made in the middle of the next tile, when the other
/// warpgroup's dS is likely there, and behind a head's last tile. One text for all tiles and both
/// warpgroups: it must fit into the instruction cache. So a head's first tile also makes a dQ,
/// which nobody reads, and at head_dim 72 warpgroup 0 makes a chunk of dQ that warpgroup 1 stores.
template <typename T, int kHeadDim, bool kCluster>
__device__ __forceinline__ void compute_heads(const Plan& plan, const uint32_t shared, int rank,
                                              int group) {
  using M = Memory<kHeadDim, kCluster>;
  constexpr int kChunks = M::kChunks;
  constexpr int kFirstPart = 4;  // chunks of dQ of warpgroup 0: whole planes
  constexpr int kDqTiles = kChunks - kFirstPart;
  const AttentionShape& shape = plan.call.shape;
  const int first_key = rank * kKeys;
  const int num_keys = static_cast<int>(shape.key_length) - first_key;
  const int group_key = group * kGroupKeys;

  int count = 0;  // tiles so far
  int loads = 0;  // of K and V
#pragma unroll 1
  for (int number = plan.rounds.first(static_cast<int>(blockIdx.x) / plan.cluster);
       number < plan.num_heads; number = plan.rounds.next(number), loads += 2) {
    float dk[2][kChunks][4] = {};
    float dv[2][kChunks][4] = {};
#pragma unroll
    for (int sub = 0; sub < 2; ++sub) {
      pin(dk[sub]);
      pin(dv[sub]);
    }
    const int v_slot = loads % M::kKeySlots;
    const int k_slot = (loads + 1) % M::kKeySlots;
    wait_for(shared + M::kKeyFull + v_slot * 8, loads / M::kKeySlots & 1);
    wait_for(shared + M::kKeyFull + k_slot * 8, (loads + 1) / M::kKeySlots & 1);

    // dQ of tile `index` of all, `tile` of the head. The caller commits, waits and stores.
    const auto start_dq = [&](float(&dq)[kDqTiles][4], uint32_t memory, int index) {
      multiply_keys<T, kHeadDim, kDqTiles>(
          dq,
          memory + M::kKeyRing + k_slot * M::kKeyBytes + group * (kFirstPart / 2 * M::kKeyPlane),
          memory + M::kDs + (index & 1) * kDsBytes);
    };
    const auto store_dq = [&](const float(&dq)[kDqTiles][4], uint32_t memory, int index, int tile) {
      const int slot = index & 1;
      const int num_chunks = group == 0 ? kFirstPart : kDqTiles;
      arrive_warp(memory + M::kDsEmpty + slot * 8);
      if constexpr (kCluster) {
        wait_for(memory + M::kPartsEmpty + slot * 8, (index >> 1 & 1) ^ 1);
        send_part<kHeadDim>(dq, plan, rank, memory + M::kParts + slot * M::kPartBytes,
                            memory + M::kPartsFull + slot * 8, group * kFirstPart, num_chunks);
      } else {
        const Head head(plan, number);
        const int first = tile * kQueries;
        store_rows<T>(dq, row_of(plan.call.dq, head.b, first, head.h) + group * (kFirstPart * 8),
                      plan.call.dq.row_stride, static_cast<int>(shape.query_length) - first,
                      shape.scale, num_chunks);
      }
    };
#pragma unroll 1
    for (int tile = 0; tile < plan.num_tiles; ++tile, ++count) {
      const int slot = count & 1;
      uint32_t memory = hidden(shared);
      wait_for(memory + M::kFull + slot * 8, count >> 1 & 1);
#pragma unroll
      for (int sub = 0; sub < 2; ++sub) {
        memory = hidden(memory);
        const uint32_t q = memory + M::kRing + slot * 2 * M::kQueryBytes;
        const uint32_t dout = q + M::kQueryBytes;
        const int key = group_key + sub * kSubKeys;
        float s[8][4];
        float dp[8][4];
        load_stats(s, dp, memory + M::kStats + slot * kStatsBytes);
        pin(s);
        pin(dp);
        begin_products();
        multiply_dim<T, kHeadDim, M::kKeyPlane, M::kQueryPlane>(
            s, memory + M::kKeyRing + k_slot * M::kKeyBytes + key * 32, q);
        multiply_dim<T, kHeadDim, M::kKeyPlane, M::kQueryPlane>(
            dp, memory + M::kKeyRing + v_slot * M::kKeyBytes + key * 32, dout);
        commit_products();
        wait_products<0>();
        pin(s);
        pin(dp);
        if (sub == 0) {
          wait_for(memory + M::kDsEmpty + slot * 8, (count >> 1 & 1) ^ 1);
        } else if (tile + 1 == plan.num_tiles) {
          arrive_warp(memory + M::kKeyEmpty + v_slot * 8);
        }
        uint32_t p[8][2];
        uint32_t ds[8][2];
        differentiate<T>(p, ds, s, dp, memory + M::kDs + slot * kDsBytes + key * 16,
                         plan.scale_log2, num_keys - key);
        if (sub == 0) {
          wait_for(memory + M::kDsFull + (slot ^ 1) * 8, (count - 1) >> 1 & 1);
        }
        float dq[kDqTiles][4];
        begin_products();
        multiply_tile<T, kHeadDim, M::kQueryPlane>(dv[sub], p, dout);
        multiply_tile<T, kHeadDim, M::kQueryPlane>(dk[sub], ds, q);
        if (sub == 0) {
          start_dq(dq, memory, count - 1);
        }
        commit_products();
        wait_products<0>();
        pin(dv[sub]);
        pin(dk[sub]);
        if (sub == 0) {
          pin(dq);
          if (tile > 0) {
            store_dq(dq, memory, count - 1, tile - 1);
          }
        }
      }
      arrive_warp(memory + M::kEmpty + slot * 8);
      publish_shared();
      arrive_warp(memory + M::kDsFull + slot * 8);
    }
    const uint32_t memory = hidden(shared);
    {
      wait_for(memory + M::kDsFull + ((count - 1) & 1) * 8, (count - 1) >> 1 & 1);
      float dq[kDqTiles][4];
      begin_products();
      start_dq(dq, memory, count - 1);
      commit_products();
      wait_products<0>();
      pin(dq);
      arrive_warp(memory + M::kKeyEmpty + k_slot * 8);
      store_dq(dq, memory, count - 1, plan.num_tiles - 1);
    }
    // Through the places of the next tile's dS.
    wait_for(memory + M::kDsEmpty + (count & 1) * 8, (count >> 1 & 1) ^ 1);
    const uint32_t staging = memory + M::kDs + (count & 1) * kDsBytes + group_key * 16;
    const Head head(plan, number);
#pragma unroll
    for (int sub = 0; sub < 2; ++sub) {
      const int key = group_key + sub * kSubKeys;
      store_staged<T>(dk[sub], staging, row_of(plan.call.dk, head.b, first_key + key, head.h),
                      plan.call.dk.row_stride, num_keys - key, shape.scale);
      store_staged<T>(dv[sub], staging, row_of(plan.call.dv, head.b, first_key + key, head.h),
                      plan.call.dv.row_stride, num_keys - key, 1.0F);
    }
  }
}

template <typename T, int kHeadDim, bool kCluster>
__device__ __forceinline__ void walk(const Plan& plan, const Maps& maps) {
  using M = Memory<kHeadDim, kCluster>;
  const uint32_t memory = shared_base();
  const int thread = static_cast<int>(threadIdx.x);
  // The same in all lanes, which the compiler cannot know.
  const int warp = __shfl_sync(0xffffffffU, thread >> 5, 0);
  const int rank = kCluster ? cluster_rank() : 0;
  if (thread == 0) {
    constexpr int kWarps = kConsumers * kGroupThreads / 32;
    for (int slot = 0; slot < 2; ++slot) {
      init_barrier(memory + M::kFull + slot * 8, 1);
      init_barrier(memory + M::kEmpty + slot * 8, kWarps);
      init_barrier(memory + M::kDsFull + slot * 8, kWarps);
      init_barrier(memory + M::kDsEmpty + slot * 8, kWarps);
      init_barrier(memory + M::kPartsFull + slot * 8, 1);
      init_barrier(memory + M::kPartsEmpty + slot * 8, plan.cluster);
    }
    for (int slot = 0; slot < M::kKeySlots; ++slot) {
      init_barrier(memory + M::kKeyFull + slot * 8, 1);
      init_barrier(memory + M::kKeyEmpty + slot * 8, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if constexpr (kCluster) {
      expect_bytes(memory + M::kPartsFull, M::kPartBytes);
      expect_bytes(memory + M::kPartsFull + 8, M::kPartBytes);
    }
  }
  __syncthreads();
  if constexpr (kCluster) {
    sync_cluster();  // nobody writes to a block that has not begun
  }
  if (warp < 4) {
    set_registers<24, false>();
    if (warp == 0) {
      if (is_elected()) {
        load_heads<kHeadDim, kCluster>(plan, maps, memory, rank);
      }
    } else if constexpr (kCluster) {
      sum_heads<T, kHeadDim>(plan, memory, thread - 32, rank);
    }
    __syncwarp();
  } else {
    set_registers<240, true>();
    compute_heads<T, kHeadDim, kCluster>(plan, memory, rank, warp / 4 - 1);
  }
  if constexpr (kCluster) {
    sync_cluster();  // nor to one that has ended
  }
}

#endif

template <typename T, int kHeadDim, bool kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_backward_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  walk<T, kHeadDim, kCluster>(plan, maps);
#else
  __trap();
#endif
}

/// Blocks that share a head; 0: too many keys.
int cluster_of(int64_t key_length) {
  int cluster = 1;
  while (cluster * kKeys < key_length && cluster <= kMaxCluster) {
    cluster *= 2;
  }
  return cluster <= kMaxCluster ? cluster : 0;
}

template <typename T, int kHeadDim, bool kCluster>
cudaError_t launch_as(Plan& plan, const Maps& maps, const Gpu& gpu, cudaStream_t stream) {
  const auto kernel = wgmma_backward_kernel<T, kHeadDim, kCluster>;
  const int bytes = Memory<kHeadDim, kCluster>::kBytes;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.blockDim = {kThreads, 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int places = gpu.num_multiprocessors;
  if (kCluster) {
    config.gridDim = {static_cast<unsigned>(plan.cluster), 1, 1};
    error = cudaOccupancyMaxActiveClusters(&places, kernel, &config);
    if (error != cudaSuccess) {
      return error;
    }
  }
  plan.rounds = Rounds(plan.num_heads, std::max(1, std::min(places, plan.num_heads)));
  config.gridDim = {static_cast<unsigned>(plan.rounds.workers * plan.cluster), 1, 1};
  error = launch_stats<T, kHeadDim>(plan.call, plan.num_tiles, plan.stats, stream);
  return error != cudaSuccess ? error : cudaLaunchKernelEx(&config, kernel, plan, maps);
}

template <typename T, int kHeadDim>
cudaError_t launch_typed(Plan& plan, const Maps& maps, const Gpu& gpu, cudaStream_t stream) {
  return plan.cluster == 1 ? launch_as<T, kHeadDim, false>(plan, maps, gpu, stream)
                           : launch_as<T, kHeadDim, true>(plan, maps, gpu, stream);
}

template <int kHeadDim>
cudaError_t launch(Plan& plan, const Gpu& gpu, cudaStream_t stream) {
  const AttentionBackward& call = plan.call;
  const AttentionShape& shape = call.shape;
  Maps maps;
  const struct {
    const HeadsView& view;
    int64_t length;
    int rows;
    CUtensorMap* map;
  } wanted[] = {{call.q, shape.query_length, kQueries, &maps.q},
                {call.dout, shape.query_length, kQueries, &maps.dout},
                {call.k, shape.key_length, kKeys, &maps.k},
                {call.v, shape.key_length, kKeys, &maps.v}};
  for (const auto& one : wanted) {
    const cudaError_t error = make_tensor_map(one.view, shape, one.length, one.rows, one.map);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return shape.type == DType::kBF16 ? launch_typed<Bf16, kHeadDim>(plan, maps, gpu, stream)
                                    : launch_typed<F16, kHeadDim>(plan, maps, gpu, stream);
}

int64_t padded_queries(const AttentionShape& shape) {
  return tiles_of(shape.query_length) * kQueries;
}

}  // namespace

bool wgmma_backward_supported([[maybe_unused]] const AttentionShape& shape,
                              [[maybe_unused]] const Gpu& gpu) {
#if defined(KINORA_HAS_SM90A)
  constexpr int64_t kMaxQuads = std::numeric_limits<int32_t>::max() / 4;
  return gpu.capability == 90 && (shape.head_dim == 64 || shape.head_dim == 72) &&
         shape.has_equal_keys() && shape.key_length > kGroupKeys &&
         cluster_of(shape.key_length) > 0 && shape.query_length >= kQueries &&
         shape.batch * shape.heads <= kMaxQuads / padded_queries(shape) &&
         shape.batch * shape.heads < (int64_t{1} << 32) / shape.heads;
#else
  return false;
#endif
}

size_t wgmma_backward_workspace_bytes(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch * shape.heads * padded_queries(shape)) * sizeof(float2);
}

cudaError_t launch_wgmma_backward(const AttentionBackward& call, void* workspace, const Gpu& gpu,
                                  cudaStream_t stream) {
  Plan plan;
  plan.call = call;
  plan.scale_log2 = call.shape.scale * kLog2E;
  plan.num_tiles = static_cast<int>(padded_queries(call.shape) / kQueries);
  plan.num_heads = static_cast<int>(call.shape.batch * call.shape.heads);
  plan.heads_reciprocal =  // of one head: 0, since 2^32 does not fit
      static_cast<uint32_t>(ceil_div(int64_t{1} << 32, call.shape.heads));
  plan.cluster = cluster_of(call.shape.key_length);
  plan.stats = static_cast<float2*>(workspace);
  return call.shape.head_dim == 64 ? launch<64>(plan, gpu, stream) : launch<72>(plan, gpu, stream);
}

}  // namespace kinora::kernels::cuda::attention
